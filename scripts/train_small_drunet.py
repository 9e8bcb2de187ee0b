"""Trains the small DRUNet that ships with shardinv, and measures any weights of that network.

The network predicts noise of unit variance: an image is denoised as
``x - sigma * DRUNet(x, sigma)``, so at small noise levels it can do little harm, whatever it was
trained on. The network is small, so plain ``torch.distributed`` is all the training needs.

Run it in one process, or in several that average their parameters every few steps::

    python scripts/train_small_drunet.py train --minutes 24 --out weights.pt [FOLDER ...]
    torchrun --standalone --nproc_per_node=2 scripts/train_small_drunet.py train --out weights.pt
    python scripts/train_small_drunet.py evaluate weights.pt
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import torch.distributed as dist
import typer
from deepinv.models import DRUNet
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

WIDTHS, BLOCKS = (16, 32, 64, 64), 2
PATCH = 64
SIGMA_RANGE = (1 / 255, 60 / 255)
SYNC_EVERY = 8  # steps between two averages of the parameters over the processes
CANDIDATES = 4  # crops drawn for each one kept
WARM_UP = 0.02  # share of the training time
EMA_DECAY = 0.999  # per step
SAVE_EVERY_S = 60.0
SUFFIXES = {".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp"}

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__.splitlines()[0])
console = Console()


# --- the network ---------------------------------------------------------------------------------


def build_network() -> DRUNet:
    """Return the network with its initial weights.

    Notes
    -----
    Orthogonal weights keep the scale of activations through the depth; the small gains start each
    residual block near the identity, and the whole network near "no noise found".
    """
    net = DRUNet(3, 3, nc=WIDTHS, nb=BLOCKS, pretrained=None)
    for name, weight in net.named_parameters():
        gain = 0.01 if "tail" in name else 0.2 if name.endswith("res.2.weight") else 1.0
        torch.nn.init.orthogonal_(weight, gain=gain)
    return net


def denoise(net: DRUNet, noisy: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """Denoise images ``(B, 3, H, W)`` in [0, 1]; ``sigma`` is of shape ``(B, 1, 1, 1)``."""
    return noisy - sigma * net(noisy, sigma)


def save_atomically(content: object, path: Path) -> None:
    """Write with ``torch.save``, so that ``path`` is whole or as it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        torch.save(content, partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


# --- the patches ---------------------------------------------------------------------------------


def load_photographs(folders: list[Path]) -> list[torch.Tensor]:
    """Return the folders' images that are large enough, as bytes of shape ``(3, H, W)``."""
    files = sorted(f for d in folders for f in d.rglob("*") if f.suffix.lower() in SUFFIXES)
    images = []
    for file in files:
        with Image.open(file) as opened:
            image = torch.from_numpy(np.array(opened.convert("RGB"))).permute(2, 0, 1)
        if min(image.shape[1:]) >= PATCH:
            images.append(image.contiguous())
    if not images:
        names = ", ".join(map(str, folders))
        raise typer.BadParameter(f"no photograph of {PATCH} pixels or more a side found in {names}")
    return images


def draw_crop(images: list[torch.Tensor], rng: np.random.Generator) -> torch.Tensor:
    """Cut one patch ``(3, PATCH, PATCH)`` in [0, 1], the more likely the more texture it has."""
    areas = np.array([image[0].numel() for image in images], dtype=float)
    crops, texture = [], []
    for index in rng.choice(len(images), size=CANDIDATES, p=areas / areas.sum()):
        image = images[index]
        top, left = (int(rng.integers(side - PATCH + 1)) for side in image.shape[1:])
        crop = image[:, top : top + PATCH, left : left + PATCH].float() / 255
        crops.append(crop)
        slopes = crop.diff(dim=1).abs().mean() + crop.diff(dim=2).abs().mean()
        texture.append(float(slopes) + 1e-3)
    return crops[rng.choice(CANDIDATES, p=np.array(texture) / sum(texture))]


def augment(crop: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Vary orientation, colours and intensities.

    Notes
    -----
    The changes of intensity are strong on purpose. With few photographs and without them, a network
    learns these photographs' brightness and fails on bright, flat areas while its loss still falls.
    """
    crop = torch.rot90(crop, int(rng.integers(4)), dims=(1, 2))
    if rng.random() < 0.5:
        crop = crop.flip(2)
    crop = crop[torch.from_numpy(rng.permutation(3))]
    if rng.random() < 0.15:
        crop = crop.mean(0, keepdim=True).expand(3, -1, -1)
    if rng.random() < 0.5:
        crop = 1 - crop
    if rng.random() < 0.5:  # gamma
        crop = crop.clamp(min=0) ** math.exp(rng.uniform(-0.8, 0.8))
    if rng.random() < 0.5:  # contrast about the mean
        mean = crop.mean((1, 2), keepdim=True)
        crop = mean + (crop - mean) * math.exp(rng.uniform(-1.0, 0.5))
    if rng.random() < 0.5:  # another range within [0, 1], flat ones and extreme ones too
        low, high = np.sort(rng.random(2))
        crop = low + (high - low) * crop
    return crop.clamp(0, 1)


def batches(
    images: list[torch.Tensor], size: int, rng: np.random.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield clean patches, noisy patches and their noise levels (log-uniform), without end."""
    noise = torch.Generator().manual_seed(int(rng.integers(2**62)))
    while True:
        clean = torch.stack([augment(draw_crop(images, rng), rng) for _ in range(size)])
        levels = np.exp(rng.uniform(*np.log(SIGMA_RANGE), size=(size, 1, 1, 1)))
        sigma = torch.from_numpy(levels).float()
        yield clean, clean + sigma * torch.randn(clean.shape, generator=noise), sigma


# --- training ------------------------------------------------------------------------------------


def join_processes(device: str | None) -> tuple[int, int, torch.device]:
    """Return this process's rank, their number and the device, joining torchrun's group if any."""
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if device is None:
        device = "cpu"
        if torch.cuda.is_available():
            device = f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}"
    if size > 1:
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    return rank, size, torch.device(device)


def average(values: torch.Tensor, size: int) -> torch.Tensor:
    """Return the mean of a tensor over the processes."""
    if size > 1:
        dist.all_reduce(values)
    return values / size


def learning_rate(progress: float, peak: float) -> float:
    """Return the step size after a share of the time: a linear warm-up, then a cosine to zero."""
    if progress < WARM_UP:
        return peak * max(progress / WARM_UP, 0.01)
    return peak * 0.5 * (1 + math.cos(math.pi * min((progress - WARM_UP) / (1 - WARM_UP), 1.0)))


def train_steps(
    net: DRUNet, optimiser: torch.optim.Optimizer, patches: Iterator, device: torch.device
) -> float:
    """Take as many steps as lie between two averages; return their mean loss."""
    total = 0.0
    for _ in range(SYNC_EVERY):
        clean, noisy, sigma = (tensor.to(device) for tensor in next(patches))
        error = denoise(net, noisy, sigma) - clean
        # Relative to the noise, so that every level counts; 2/255 keeps tiny levels from ruling.
        loss = (error.abs() / (sigma + 2 / 255)).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        total += loss.item()
    return total / SYNC_EVERY


@app.command()
def train(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Photographs (default: those of the package).")
    ] = None,
    out: Annotated[Path, typer.Option(help="Weights to write, in half precision.")] = Path(
        "outputs/drunet_small_residual_fp16.pt"
    ),
    minutes: Annotated[float, typer.Option(min=0.01, help="Training time in all.")] = 24.0,
    batch: Annotated[int, typer.Option(min=1, help="Patches a step and process.")] = 16,
    peak_rate: Annotated[float, typer.Option(help="Largest step size of Adam.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="Seed of weights, patches and noise.")] = 0,
    resume: Annotated[
        Path | None, typer.Option(help="A checkpoint to go on from, or weights to start from.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda:0, … (default: a GPU if any).")
    ] = None,
) -> None:
    """Train, write the averaged weights, and measure them on images held out."""
    if not folders:
        folders = [Path(str(resources.files("shardinv") / "data" / "photos"))]
    images = load_photographs(folders)
    rank, size, place = join_processes(device)
    torch.manual_seed(seed)
    net = build_network().to(place).train()
    optimiser = torch.optim.Adam(net.parameters(), lr=peak_rate)
    averaged, steps, elapsed = parameters_to_vector(net.parameters()).detach().clone(), 0, 0.0
    if resume is not None:
        state = torch.load(resume, map_location=place, weights_only=True)
        if "optimiser" in state:
            net.load_state_dict(state["network"])
            optimiser.load_state_dict(state["optimiser"])
            averaged, steps, elapsed = state["averaged"], state["steps"], state["elapsed"]
        else:
            net.load_state_dict(state)
            averaged = parameters_to_vector(net.parameters()).detach().clone()
    # Seeded by the step too: a resumed run doesn't see the first run's patches again.
    patches = batches(images, batch, np.random.default_rng((seed, rank, steps)))
    checkpoint = out.with_name(f"{out.stem}.checkpoint.pt")

    def save() -> None:
        if rank > 0:
            return
        state = {"network": net.state_dict(), "optimiser": optimiser.state_dict()}
        save_atomically(
            {**state, "averaged": averaged, "steps": steps, "elapsed": elapsed}, checkpoint
        )
        shipped = build_network().to(place)
        vector_to_parameters(averaged, shipped.parameters())
        halves = {name: value.half().cpu() for name, value in shipped.state_dict().items()}
        save_atomically(halves, out)

    losses: list[tuple[int, float]] = []
    before, start, saved = elapsed, time.monotonic(), time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=rank > 0) as bar:
        task = bar.add_task("training", total=60 * minutes, completed=elapsed)
        while elapsed < 60 * minutes:
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(elapsed / (60 * minutes), peak_rate)
            loss = train_steps(net, optimiser, patches, place)
            # The loss and the clock travel with the parameters, so all processes stop together.
            own = torch.tensor([loss, time.monotonic() - start], device=place)
            shared = average(
                torch.cat([parameters_to_vector(net.parameters()).detach(), own]), size
            )
            vector_to_parameters(shared[:-2], net.parameters())
            loss, elapsed = float(shared[-2]), before + float(shared[-1])
            steps += SYNC_EVERY
            # A young average forgets faster, or the initial weights would stay in it for long.
            averaged.lerp_(shared[:-2], 1 - min(EMA_DECAY, steps / (steps + 100.0)) ** SYNC_EVERY)
            losses.append((steps * batch * size, loss))
            recent = sum(value for _, value in losses[-50:]) / len(losses[-50:])
            text = f"loss {recent:.4f} · {losses[-1][0]} patches"
            bar.update(task, completed=elapsed, description=text)
            if time.monotonic() - saved > SAVE_EVERY_S:
                save()
                saved = time.monotonic()
    save()
    if size > 1:
        dist.destroy_process_group()
    if rank == 0:
        show_losses(losses)
        console.print(f"Weights: {out}; to go on: --resume {checkpoint} with more --minutes")
        evaluate(out, device=str(place))


def show_losses(losses: list[tuple[int, float]], rows: int = 8) -> None:
    """Print the mean loss over equal parts of this run."""
    table = Table("patches", "mean loss", title="training")
    for part in np.array_split(np.array(losses), min(rows, max(len(losses), 1))):
        if len(part):
            table.add_row(f"{int(part[-1, 0])}", f"{part[:, 1].mean():.4f}")
    console.print(table)


# --- evaluation ----------------------------------------------------------------------------------


def held_out_images(files: list[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names and images ``(1, 3, H, W)`` in [0, 1]; without files, scikit-image's samples."""
    named: list[tuple[str, Callable[[], np.ndarray]]] = [
        (file.stem, lambda file=file: np.array(Image.open(file).convert("RGB"))) for file in files
    ]
    if not files:
        from skimage import data

        named = [(name, getattr(data, name)) for name in ("astronaut", "chelsea", "camera")]
    for name, load in named:
        pixels = load()
        if pixels.ndim == 2:
            pixels = np.stack([pixels] * 3, axis=-1)
        # At other sizes DRUNet pads or splits the image: not the network we want to measure.
        height, width = (side // 8 * 8 for side in pixels.shape[:2])
        image = torch.from_numpy(pixels[:height, :width].copy()).permute(2, 0, 1)
        yield name, image[None].float() / 255


@app.command()
def evaluate(
    weights: Annotated[Path, typer.Argument(help="Weights written by `train`.")],
    images: Annotated[
        list[Path] | None, typer.Argument(help="Image files (default: scikit-image's samples).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    device: Annotated[str, typer.Option(help="Where to compute.")] = "cpu",
) -> None:
    """Print the PSNR on images held out, at noise of 5/255 and 25/255."""
    net = build_network().to(device).eval()
    net.load_state_dict(torch.load(weights, map_location=device, weights_only=True))
    table = Table("image", "sigma·255", "noisy (dB)", "denoised (dB)", title=weights.name)
    for name, clean in held_out_images(images or []):
        for level in (5, 25):
            noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed))
            noisy = clean + level / 255 * noise
            with torch.no_grad():
                sigma = torch.full((1, 1, 1, 1), level / 255, device=device)
                result = denoise(net, noisy.to(device), sigma).cpu().clamp(0, 1)
            psnr = (-10 * math.log10((x - clean).square().mean()) for x in (noisy, result))
            table.add_row(name, str(level), *(f"{value:.2f}" for value in psnr))
    console.print(table)


if __name__ == "__main__":
    app()
