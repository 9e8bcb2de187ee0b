"""Run DeepInverse's own tests of ``deepinv.distributed`` against shardinv.

The tests ship inside the installed DeepInverse. Their text is read, the imports are exchanged, and
pytest runs it in a temporary folder; nothing of it is kept here. With ``--peer`` the file runs as
it is, against ``deepinv.distributed``, for a baseline. Other arguments go to pytest::

    python tests/peer/run.py -k "gather and cpu_multi" -x

Nothing is downloaded: where the tests ask for pretrained DRUNets they get random ones.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

# Names that DeepInverse gives its DRUNet weights, and the network's arguments.
WEIGHTS = {
    "drunet_deepinv_color_finetune_22k.pth": {"in_channels": 3, "out_channels": 3},
    "drunet_deepinv_gray_finetune_26k.pth": {"in_channels": 1, "out_channels": 1},
}

IMPORTS = re.compile(r"deepinv\.distributed(\.(framework|distribute|strategies))?(?![\w.])")

DESELECTED = {
    "test_processor_different_patch_sizes": (
        "demands an error for an image of one tile (16 px, patch_size=16), which shardinv denoises"
    ),
}

# Lines that are exchanged for others; the rest of their test runs.
CHANGED = {
    'assert hasattr(model, "_deepinv_dist_sync")': (
        "pass",
        "it reads a private attribute of the peer",
    ),
    'ctx = mp.get_context("spawn")': (
        'ctx = mp.get_context("forkserver"); ctx.set_forkserver_preload(["shardinv"])',
        "ranks are forked from a process that has imported torch: a quarter of the time",
    ),
    "timeout_per_rank: float = 12.0,": (
        "timeout_per_rank: float = 90.0,",
        "on a busy machine the ranks need longer to import torch",
    ),
}


def installed_tests() -> Path:
    """The folder of DeepInverse's own tests, found without importing the package."""
    spec = importlib.util.find_spec("deepinv")
    folder = Path(next(iter(spec.submodule_search_locations))) / "tests" if spec else None
    if folder is None or not (folder / "test_distributed.py").is_file():
        sys.exit("run.py: the installed deepinv ships no tests/test_distributed.py (0.5 does)")
    return folder


def exchanged(text: str) -> str:
    """The tests with shardinv's imports for the peer's, and with the changes in ``CHANGED``."""
    for line, (instead, _) in CHANGED.items():
        if line not in text:
            print(f"note: no line reads '{line}' any more")
        text = text.replace(line, instead)
    text, count = IMPORTS.subn("shardinv.compat", text)
    if count == 0 or "deepinv.distributed" in text:
        sys.exit("run.py: this deepinv imports deepinv.distributed in a way that is not known here")
    return text


def supply_weights(torch_home: Path) -> None:
    """Put random DRUNets where torch's cache of downloads would be."""
    import torch
    from deepinv.models import DRUNet

    folder = torch_home / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    for name, arguments in WEIGHTS.items():
        # On the meta device: DRUNet's own orthogonal start takes most of a minute on one core.
        with torch.device("meta"):
            names = DRUNet(**arguments, pretrained=None).state_dict()
        weights = {
            key: 0.2 * torch.randn(meta.shape) / (meta.numel() / meta.shape[0]) ** 0.5
            for key, meta in names.items()
        }
        torch.save(weights, folder / name)


def environment(folder: Path) -> dict[str, str]:
    """Variables for pytest and the processes its tests start, which import the tests by name."""
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    unreachable = "http://127.0.0.1:9"
    return {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "TORCH_HOME": str(folder / "torch_home"),
        # A test that would download fails at once instead.
        "http_proxy": unreachable,
        "https_proxy": unreachable,
        "no_proxy": "127.0.0.1,localhost",
        "DEEPINV_DOWNLOAD_VERBOSE": "0",
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0], epilog="Other arguments go to pytest."
    )
    parser.add_argument(
        "--peer", action="store_true", help="run the file unchanged, against deepinv.distributed"
    )
    options, for_pytest = parser.parse_known_args()
    # A run that is stopped removes its files.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    tests = installed_tests()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="peer-tests-") as name:
        folder = Path(name)
        for helper in ("conftest.py", "dummy.py"):
            shutil.copy(tests / helper, folder)
        text = (tests / "test_distributed.py").read_text(encoding="utf-8")
        file = folder / ("test_peer_itself.py" if options.peer else "test_peer_on_shardinv.py")
        file.write_text(text if options.peer else exchanged(text), encoding="utf-8")
        supply_weights(folder / "torch_home")
        command = [
            *(sys.executable, "-m", "pytest", str(file), f"--rootdir={folder}"),
            *("-q", "-rfEs", "--disable-warnings", "-p", "no:cacheprovider"),
        ]
        if not options.peer:
            command += [f"--deselect={file.name}::{test}" for test in DESELECTED]
        command += for_pytest
        code = subprocess.run(command, cwd=folder, env=environment(folder)).returncode
    system = "deepinv.distributed" if options.peer else "shardinv"
    took = time.monotonic() - started
    print(f"\n{system} on the tests of deepinv {version('deepinv')}, {took:.0f} s")
    if not options.peer:
        for test, reason in DESELECTED.items():
            print(f"  not run: {test}: {reason}")
        for line, (instead, reason) in CHANGED.items():
            print(f"  changed: '{line}' to '{instead}': {reason}")
    return code


if __name__ == "__main__":
    sys.exit(main())
