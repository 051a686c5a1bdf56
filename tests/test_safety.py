"""A stranger's recipe runs no code. See docs/trust.md."""

import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from imagenet_opt.config.allowed_targets import check_targets, find, leaves
from imagenet_opt.config.build import make
from imagenet_opt.config.overrides import config_folder
from imagenet_opt.errors import ConfigError
from imagenet_opt.training.build_run import build_run
from tests.conftest import composed
from tests.processes import run_train

REPOSITORY = Path(__file__).parents[1]
FOLDERS = (REPOSITORY / "src", REPOSITORY / "callbacks")
SOURCES = sorted([*(file for folder in FOLDERS for file in folder.rglob("*.py")), REPOSITORY / "train.py"])
SLURM = "defaults: [override /hydra/launcher: slurm]\nhydra: {launcher"
OPTUNA = "defaults: [override /hydra/sweeper: search]\nhydra: {sweeper"

pytestmark = pytest.mark.usefixtures("checked")


def recipe(tmp_path: Path, text: str, *overrides: str) -> DictConfig:
    """train.yaml with a recipe from a stranger."""
    (tmp_path / "experiment").mkdir(exist_ok=True)
    (tmp_path / "experiment/sent.yaml").write_text(f"# @package _global_\n{text}\n")
    return composed(f"hydra.searchpath=[file://{tmp_path}]", "experiment=sent", *overrides)


def test_every_target_of_the_shipped_configuration_is_allowed() -> None:
    files = [file for file in config_folder().rglob("*.yaml") if not file.is_relative_to(config_folder() / "hydra")]
    containers = [OmegaConf.to_container(OmegaConf.load(file)) for file in files]
    targets = [value for raw in containers for _, key, value in leaves(raw) if key == "_target_"]
    assert len(targets) > 12
    for target in targets:
        check_targets(OmegaConf.create({"_target_": target}), allowed=[])
    for name in ("demo", "aggressive", "baseline"):
        composed(f"experiment={name}")


@pytest.mark.parametrize(
    "target",
    [
        *("os.system", "subprocess.Popen", "builtins.eval", "functools.partial", "torch.load", "torch.hub.load"),
        *("hydra.utils.get_method", "hydra.utils.call", "timm.models.load_checkpoint", ""),
        "torch.utils.cpp_extension.load_inline",
        *(f"imagenet_opt.sweep.job.{name}" for name in ("_run", "run_job")),
        *(f"imagenet_opt.{name}" for name in ("config.build.os.system", "probe.isolated.subprocess.Popen")),
        *("imagenet_opt.data.datamodule.folder_data.__globals__", "imagenet_opt.data.datamodule"),
        *(
            "imagenet_opt.callbacks.progress_bar.sys.exit",
            "imagenet_opt.callbacks.checkpoint.checkpoints.shutil.rmtree",
        ),
        *("imagenet_opt.callbacks.mixing.Mixing.setup", "imagenet_opt.callbacks.mixing.Trainer"),
        "imagenet_opt.callbacks.no_such.Callback",
        *("imagenet_opt.callbacks", "imagenet_opt.callbacksish.Callback", "imagenet_opt.callbacks..Mixing"),
        "lightning.pytorch.callbacks.model_checkpoint.shutil.rmtree",
        *(f"lightning.pytorch.{name}" for name in ("loggers.WandbLogger", "profilers.profiler.Path", "Trainer.fit")),
        "lightning.pytorch.cli.LightningCLI",
    ],
)
def test_other_targets_are_refused_at_any_depth(target: str) -> None:
    hidden = {
        "a": {
            "_target_": "imagenet_opt.callbacks.mixing.Mixing",
            "b": [{"c": 1}, [{"_target_": target, "_partial_": True}]],
        }
    }
    with pytest.raises(ConfigError) as caught:
        check_targets(OmegaConf.create(hidden), "callbacks", allowed=["my_package"])
    assert "callbacks.a.b[1][0]._target_=" + target in str(caught.value)


def test_a_refused_module_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_trap.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w').close()\nclass Callback: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"allow_targets=\[a_trap\.Callback\]"):
        check_targets(OmegaConf.create({"_target_": "a_trap.Callback"}), allowed=[])
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("allowed", ["my_package", "my_package.parts", "my_package.parts.Thing"])
def test_targets_of_allow_targets_are_built(allowed: str) -> None:
    check_targets(OmegaConf.create({"_target_": "my_package.parts.Thing"}), allowed=[allowed])
    for other in ("my_package_too.parts.Thing", f"{allowed}s"):
        with pytest.raises(ConfigError):
            check_targets(OmegaConf.create({"_target_": other}), allowed=[allowed])


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("own.PrintNrom", "own has no PrintNrom; did you mean PrintNorm?"),
        ("own.print_norm", "own has no print_norm; did you mean PrintNorm?"),
        ("own.prats.Thing", "own has no prats; did you mean parts?"),
        ("own.parts.Thnig", "own.parts has no Thnig; did you mean Thing?"),
        ("own.zzz", "own has no zzz"),
        ("own.broken.Thing", "No module named 'not_installed'"),
        ("absent.Thing", "No module named 'absent'"),
    ],
)
def test_a_mistyped_target_is_answered_with_the_names_of_its_module(
    target: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/__init__.py").write_text("class PrintNorm: pass\n")
    (tmp_path / "own/parts.py").write_text("class Thing: pass\n")
    (tmp_path / "own/broken.py").write_text("import not_installed\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        with pytest.raises(ConfigError) as caught:
            find(target, "callbacks.mine._target_")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "own"]:
            del sys.modules[name]
    assert str(caught.value) == f"callbacks.mine._target_={target} cannot be found: {reason}"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("callbacks: {x: {_target_: os.system, command: 'touch sprung'}}", "callbacks.x._target_"),
        ("trainer: {profiler: {_target_: os.system}}", "trainer.profiler._target_"),
        ("trainer: {plugins: [{_target_: os.system}]}", "trainer.plugins[0]._target_"),
        ("part: os\ncallbacks: {x: {_target_: '${part}.system'}}", "callbacks.x._target_"),
        ("thing: {_target_: os.system}\ncallbacks: {x: '${thing}'}", "_target_"),
        ("callbacks: {x: \"${oc.create:'{_target_: os.system}'}\"}", "callbacks.x="),
        ("callbacks: {x: '${oc.select:none,{_target_: os.system}}'}", "callbacks.x="),
        ("callbacks: {x: {_target_: '${now:os.system}'}}", "callbacks.x._target_"),
        (
            "turn: {32-true: {_target_: os.system}, mixed: a}\ncallbacks: {x: '${turn.${trainer.precision}}'}",
            "_target_",
        ),
        ("data: {_target_: os.system}", "data._target_"),
        ("schedule: {_target_: imagenet_opt.sweep.job.run_job, script: /tmp/x.py}", "schedule._target_"),
        ("model: {anything: {_target_: os.system}}", "model.anything._target_"),
    ],
)
def test_a_recipe_cannot_run_code_in_the_run(text: str, key: str, tmp_path: Path) -> None:
    config = recipe(tmp_path, text, f"run_folder={tmp_path}/run")
    with pytest.raises(ConfigError) as caught:
        build_run(config)
    assert key in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hydra: {callbacks: {x: {_target_: os.system}}}", "hydra.callbacks.x._target_=os.system"),
        ("hydra: {callbacks: {x: {y: [{_target_: os.system}]}}}", "hydra.callbacks.x.y[0]._target_"),
        ("hydra: {callbacks: {x: '${hydra:runtime.output_dir}'}}", "hydra.callbacks.x"),
        (
            "turn: {None: a, RUN: {_target_: os.system}}\nhydra: {callbacks: {x: '${turn.${hydra.mode}}'}}",
            "callbacks.x",
        ),
        ("hydra: {sweeper: {params: {a.b: '${oc.select:none,{_target_: os.system}}'}}}", "hydra.sweeper.params.a.b"),
        ("hydra: {callbacks: {x: '${oc.select:none,{_target_: os.system}}'}}", "hydra.callbacks.x"),
        ("hydra: {launcher: {_target_: hydra_plugins.sent.Launcher}}", "hydra.launcher._target_"),
        ("hydra: {sweeper: {_target_: hydra_plugins.sent.Sweeper}}", "hydra.sweeper._target_"),
        ("hydra: {sweeper: {params: {allow_targets: os}}}", "hydra.sweeper.params.allow_targets"),
        ("hydra: {sweeper: {params: {+hydra.searchpath: x}}}", "hydra.searchpath"),
        ("hydra: {job_logging: {handlers: {x: {class: smtplib.SMTP}}}}", "hydra.job_logging.handlers.x.class"),
        ("hydra: {job_logging: {formatters: {x: {(): os.system}}}}", "hydra.job_logging.formatters.x.()"),
        ("hydra: {job_logging: {formatters: {x: {style: '{'}}}}", "hydra.job_logging.formatters.x.style"),
        ("hydra: {hydra_logging: {handlers: {x: {stream: 'ext://os.environ'}}}}", "handlers.x.stream"),
        ("hydra: {job_logging: {handlers: {file: {filename: /root/.bashrc}}}}", "handlers.file.filename"),
        ("hydra: {job: {env_set: {CC: /tmp/not-a-compiler}}}", "env_set"),
        ("hydra: {job: {env_copy: [HOME]}}", "env_copy"),
        ("hydra: {overrides: {task: ['allow_targets=[os]']}}", "hydra.overrides"),
        (f"{SLURM}: {{setup: [touch sprung]}}}}", "a recipe may not set hydra.launcher.setup[0]"),
        (f"{SLURM}: {{srun_args: [--export=ALL]}}}}", "a recipe may not set hydra.launcher.srun_args[0]"),
        (f"{SLURM}: {{python: ./sent}}}}", "a recipe may not set hydra.launcher.python"),
        (f"{SLURM}: {{additional_parameters: {{wrap: ./sent}}}}}}", "hydra.launcher.additional_parameters.wrap"),
        (f"{SLURM}: {{submitit_folder: /sent}}}}", "a recipe may not set hydra.launcher.submitit_folder"),
        (f"{SLURM}: {{partition: {{a: b}}}}}}", "a recipe may not set hydra.launcher.partition.a"),
        (f'{SLURM}: {{partition: "a\\ntouch sprung"}}}}', "hydra.launcher.partition holds control characters"),
        (f'{SLURM}: {{name: "a${{now:%n}}b"}}}}', "hydra.launcher.name holds control characters"),
        (f'{SLURM}: {{}}, sweep: {{dir: "a\\ntouch sprung"}}}}', "hydra.launcher.submitit_folder holds control"),
        (f"{OPTUNA}: {{custom_search_space: os.system}}}}", "a recipe may not set hydra.sweeper.custom_search_space"),
        (f"{OPTUNA}: {{storage: 'sqlite:////sent'}}}}", "a recipe may not set hydra.sweeper.storage"),
        (f"{OPTUNA}: {{search_space: {{allow_targets: {{}}}}}}}}", "hydra.sweeper.search_space"),
        (f"{OPTUNA}: {{sampler: {{weights: {{_target_: os.system}}}}}}}}", "hydra.sweeper.sampler.weights._target_"),
        (f"{OPTUNA}: {{params: {{allow_targets: os}}}}}}", "hydra.sweeper.params.allow_targets"),
        ("allow_targets: [os]", "a recipe sets allow_targets"),
        ("allow_targets: os", "allow_targets=os"),
        ("allow_targets: ['${seed}']", "allow_targets"),
    ],
)
def test_a_recipe_cannot_run_code_through_hydra(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe(tmp_path, text)
    assert words in str(caught.value)


def test_only_the_user_can_allow_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("from lightning.pytorch import Callback\nclass Mine(Callback): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "callbacks: {mine: {_target_: mine.Mine}}\nhydra: {callbacks: {mine: {_target_: mine.Mine}}}"
    with pytest.raises(ConfigError):
        recipe(tmp_path, text)
    config = recipe(tmp_path, text, "allow_targets=[mine]", f"run_folder={tmp_path}")
    check_targets(config.callbacks, allowed=config.allow_targets)
    assert type(make(config.callbacks.mine, "callbacks.mine")).__module__ == "mine"


def test_train_py_refuses_a_recipe_before_it_writes_or_runs(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/sent.yaml").write_text(
        "# @package _global_\nhydra:\n  callbacks:\n    x:\n"
        f"      _target_: pathlib.Path.touch\n      _args_: [{{_target_: pathlib.Path, _args_: [{tmp_path}/sprung]}}]\n"
    )
    arguments = ["--config-dir", str(tmp_path), "experiment=sent", f"hydra.run.dir={tmp_path}/run"]
    done = run_train(arguments, cwd=Path.cwd(), environment=dict(os.environ))
    assert done.returncode == 2
    assert "ConfigError: hydra.callbacks.x._target_=pathlib.Path.touch" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists() and not (tmp_path / "sprung").exists()


def calls(file: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def option(call: ast.Call, name: str) -> Any:
    value = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    return value.value if isinstance(value, ast.Constant) else None


OWN_PIPES = ("imagenet_opt/probe/isolated.py", "imagenet_opt/probe/isolated_process.py")
"""Files that pickle messages between a process and its parent."""
UNPICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "_pickle"}


def offences(file: Path) -> Iterator[str]:
    """Loads of files with code, and code made of text, that ruff's rules (pyproject.toml) do not find."""
    for name, call in calls(file):
        place = f"{file.name}:{call.lineno} {name}"
        if name in ("compile", "__import__"):
            yield place
        loads = name == "torch.load" or (name.endswith(".fit") and "trainer" in name)
        if loads and option(call, "weights_only") is not True:
            yield f"{place} without weights_only=True"
        if name in ("np.load", "numpy.load") and option(call, "allow_pickle") not in (None, False):
            yield f"{place} with allow_pickle"
    for node in ast.walk(ast.parse(file.read_text())):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        yield from (f"{file.name}: imports {name}" for name in modules if name.partition(".")[0] in UNPICKLERS)


def test_no_source_unpickles_a_file() -> None:
    checked = [file for file in SOURCES if not str(file).endswith(OWN_PIPES)]
    assert len(checked) == len(SOURCES) - len(OWN_PIPES) > 40
    assert [what for file in checked for what in offences(file)] == []


@pytest.mark.parametrize(
    "line",
    [
        *("torch.load(f)", "torch.load(f, weights_only=False)", "run.trainer.fit(m, ckpt_path=p)"),
        *("np.load(f, allow_pickle=True)", "import pickle", "from pickle import loads", "compile(x)", "__import__(x)"),
    ],
)
def test_the_search_finds_offences(line: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(line)
    assert list(offences(tmp_path / "bad.py"))
