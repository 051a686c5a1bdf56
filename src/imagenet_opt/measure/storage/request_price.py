"""What requests to an object storage cost."""

DOLLARS_PER_1000_GETS = 0.0004
"""Of GET requests to S3 Standard in us-east-1; other regions, classes and services charge other prices. Source:
https://aws.amazon.com/s3/pricing/, as known in November 2026."""


def price_of_gets(num: float) -> float:
    """Dollars."""
    return num * DOLLARS_PER_1000_GETS / 1000


def dollars(price: float) -> str:
    return f"${price:,.2f}" if price >= 0.01 or price == 0 else "less than a cent"
