"""Fashion-MNIST, from Debian's package or from the data folder."""

from __future__ import annotations

from pathlib import Path

from evenfed.core.errors import DataError
from evenfed.data.dataset import FederatedDataset
from evenfed.data.files import checksum
from evenfed.data.images import ImageOptions, ImagePool, federate, locate_idx, read_idx
from evenfed.data.partition import Partitioner
from evenfed.data.registry import SourceInfo
from evenfed.data.transforms import Rotations

INFO = SourceInfo(
    name="fashion_mnist",
    title="70,000 pictures of clothes, 28 x 28",
    kind="multiclass",
    clients="a partition of the images: Dirichlet over labels unless another is given",
    needs="Debian package",
    source="Xiao, Rasul, Vollgraf: Fashion-MNIST, 2017 (arXiv:1708.07747)",
    terms="Expat (MIT)",
)

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
MIRROR = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
    "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion/"
)
ADVICE = "On Debian: apt-get install dataset-fashion-mnist."
# Two compressions of the same bytes: Debian's and the authors'.
FILES = {
    "train-images-idx3-ubyte.gz": (
        "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    ),
    "train-labels-idx1-ubyte.gz": (
        "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    ),
    "t10k-images-idx3-ubyte.gz": (
        "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
}
CLASSES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


def load(
    *,
    clients: int | None = None,
    partition: Partitioner | None = None,
    seed: int = 0,
    val: float = 0.1,
    rotations: Rotations | str | None = None,
    flat: bool = False,
    examples: int | None = None,
) -> FederatedDataset:
    """Load Fashion-MNIST; for the options see `evenfed.data.images.ImageOptions`.

    Examples
    --------
    >>> from evenfed.data.partition import Shards
    >>> load(clients=100, partition=Shards(2))  # doctest: +SKIP
    """
    pools = [
        ImagePool.of(
            read_idx(find(f"{part}-images-idx3-ubyte.gz")),
            read_idx(find(f"{part}-labels-idx1-ubyte.gz")),
        )
        for part in ("train", "t10k")
    ]
    return federate(
        *pools,
        name="fashion_mnist",
        class_names=CLASSES,
        clients=clients,
        partition=partition,
        seed=seed,
        options=ImageOptions(val, rotations=rotations, flat=flat, examples=examples),
    )


def find(filename: str) -> Path:
    """Path of a file: Debian's if the package is there, else from the data folder.

    Examples
    --------
    >>> name = "train-labels-idx1-ubyte.gz"
    >>> find(name)  # doctest: +SKIP
    """
    packaged = DEBIAN / filename
    if packaged.is_file():
        if checksum(packaged) not in FILES[filename]:
            raise DataError(f"file '{packaged}' is not the expected one: its sha256 is unknown")
        return packaged
    return locate_idx("fashion_mnist", filename, FILES[filename], MIRROR + filename, ADVICE)
