"""Makes the .npz files that the searches on images are measured on.

    python -m benchmarks images FASHION.npz CIFAR.bin.xz --out FOLDER

FASHION.npz holds Fashion-MNIST as `x_train y_train x_test y_test`, uint8 28x28 (the first 6,000 training and 1,000 test
images; https://github.com/zalandoresearch/fashion-mnist, MIT). CIFAR.bin.xz holds 10,000 training and 2,000 test images
of CIFAR-10 in the order of their classes, each as two bytes of its length, one of its class, and a JPEG (Krizhevsky
2009); every second training image is taken. It needs Pillow. Images are made half as large, by the mean of 2x2 pixels,
rounded. FOLDER then has `fashion_mnist_6k.npz` and `cifar10_5k.npz`.
"""

from __future__ import annotations

import argparse
import io
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

_TEST = 2000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("fashion", type=Path)
    parser.add_argument("cifar", type=Path)
    parser.add_argument("--out", type=Path, default=Path())


def main(arguments: argparse.Namespace) -> None:
    arguments.out.mkdir(parents=True, exist_ok=True)
    with np.load(arguments.fashion, allow_pickle=False) as fashion:
        arrays = {name: fashion[name] for name in ("x_train", "y_train", "x_test", "y_test")}
    write(arguments.out / "fashion_mnist_6k.npz", arrays)
    x, y = cifar(arguments.cifar)
    arrays = {"x_train": x[:-_TEST:2], "y_train": y[:-_TEST:2], "x_test": x[-_TEST:], "y_test": y[-_TEST:]}
    write(arguments.out / "cifar10_5k.npz", arrays)


def cifar(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [samples, 32, 32, 3], and their classes."""
    from PIL import Image

    records, start, images, classes = lzma.decompress(path.read_bytes()), 0, [], []
    while start < len(records):
        size = int.from_bytes(records[start : start + 2], "little")
        classes.append(records[start + 2])
        images.append(np.asarray(Image.open(io.BytesIO(records[start + 3 : start + 3 + size])).convert("RGB")))
        start += 3 + size
    return np.stack(images), np.array(classes, dtype=np.int64)


def write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write a file, its images half as large."""
    made: dict[str, Any] = {name: halved(array) if name.startswith("x") else array for name, array in arrays.items()}
    np.savez(path, **made)
    print(f"{path}: {', '.join(f'{name} {list(array.shape)}' for name, array in arrays.items())}")


def halved(images: np.ndarray) -> np.ndarray:
    """Images uint8 [samples, height, width], or with channels last."""
    tensor = torch.from_numpy(images)
    first = tensor.unsqueeze(1) if tensor.dim() == 3 else tensor.permute(0, 3, 1, 2)
    small = functional.avg_pool2d(first.float(), 2).round().to(torch.uint8)
    return np.ascontiguousarray((small[:, 0] if tensor.dim() == 3 else small.permute(0, 2, 3, 1)).numpy())
