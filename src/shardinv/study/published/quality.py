"""PSNR of the published runs, and how far it is from that of one GPU."""

from __future__ import annotations

from collections import defaultdict

from shardinv.study.published.rows import rows


def published_quality() -> dict[tuple[int, int], list[tuple[float, float]]]:
    """By side in pixels and number of workers, at each iteration from the start.

    Returns
    -------
    dict
        PSNR, and its difference to the run on one GPU, both in dB.
    """
    found: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for row in rows("quality.csv"):
        key = int(row["image_side_px"]), int(row["gpus"])
        found[key].append((float(row["psnr_db"]), float(row["psnr_difference_db"])))
    return dict(found)
