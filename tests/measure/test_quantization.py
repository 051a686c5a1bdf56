import pytest

from imagenet_opt.measure.quantization import multiple_of, neighbour, padded_share

SIZES = (248, 252, 255, 256, 257, 260, 264)


def test_multiples() -> None:
    assert [multiple_of(size) for size in SIZES] == [8, 1, 1, 64, 1, 1, 8]


@pytest.mark.parametrize(("size", "other"), [(252, 256), (255, 256), (257, 256), (260, 264), (248, 256), (256, None)])
def test_a_size_is_compared_with_the_nearest_better_one(size: int, other: int | None) -> None:
    assert neighbour(size, SIZES) == other


def test_nothing_better_nothing_to_compare_with() -> None:
    assert neighbour(7, (5, 7)) is None


def test_filling_up_wastes_the_rest() -> None:
    assert padded_share(256, 8, 2) == 1
    assert padded_share(257, 8, 1) == pytest.approx(257 / 264)
    assert padded_share(257, 8, 2) == pytest.approx((257 / 264) ** 2)
