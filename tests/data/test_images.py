import gzip

import numpy as np
import pytest
import torch

from evenfed.core.errors import ConfigError, DataError
from evenfed.data.files import locate
from evenfed.data.images import ImageOptions, ImagePool, federate, read_idx, rotate
from evenfed.data.partition import IID, ByColumn, Dirichlet, Shards
from evenfed.data.sources import cifar10, digits, fashion_mnist, femnist, mnist


def need(dataset, filename, sha256):
    try:
        locate(dataset, filename, sha256, download=False)
    except DataError as error:
        pytest.skip(str(error))


def need_mnist():
    for name, checksums in mnist.FILES.items():
        need("mnist", name, checksums[0])
    need("mnist", *mnist.WRITERS)


def pool(size, seed=0, columns=None):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (size, 6, 6)).astype(np.uint8)
    return ImagePool.of(pixels, np.arange(size) % 4, columns=columns)


def deal(train, test, clients=3, partition=None, **options):
    return federate(
        train,
        test,
        name="blank",
        class_names=tuple("abcd"),
        clients=clients,
        partition=partition,
        seed=0,
        options=ImageOptions(**options),
    )


def test_quarter_turns_move_pixels_exactly():
    images = torch.rand(2, 3, 8, 8)
    assert torch.equal(rotate(images, 0), images)
    assert torch.equal(rotate(images, 90)[0, 0], torch.from_numpy(np.rot90(images[0, 0]).copy()))
    assert torch.equal(rotate(rotate(images, 180), 180), images)
    assert torch.equal(rotate(images, -90), rotate(images, 270))
    assert torch.equal(rotate(images, 450), rotate(images, 90))


@pytest.mark.parametrize("angle", [90, 180, 270])
def test_other_angles_turn_the_same_way_as_quarter_turns(angle):
    images = torch.rand(2, 1, 9, 9)
    assert torch.allclose(rotate(images, angle + 1e-3), rotate(images, angle), atol=1e-3)


def test_an_image_that_is_not_square_is_not_rotated():
    with pytest.raises(DataError, match="square"):
        rotate(torch.zeros(1, 1, 4, 5), 90)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not gzip", "not a readable gzip"),
        (gzip.compress(b"text"), "not an IDX file"),
        (gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 9, 1])), "cut short"),
        (gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 0, 1])), "bytes to spare"),
    ],
    # compressed bytes hold the time: processes would disagree on the names of the tests
    ids=["not gzip", "not IDX", "cut short", "to spare"],
)
def test_a_broken_idx_file_is_named(tmp_path, content, message):
    path = tmp_path / "broken.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path)
    assert "broken.gz" in str(caught.value)


def test_idx_keeps_the_shape(tmp_path):
    head = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3])
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(head + bytes(range(6))))
    assert read_idx(path).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_an_official_test_set_is_dealt_once_and_follows_the_training_mix():
    data = deal(pool(400), pool(200, 1), clients=4, partition=Shards(1))
    assert data.sizes("test").sum() == 200
    assert (data.sizes("train") + data.sizes("val")).sum() == 400
    for client in data:
        assert set(client.test.y.tolist()) == set(client.train.y.tolist())


def test_a_column_shared_by_both_sets_deals_both():
    sets = [pool(n, columns={"site": np.arange(n) % 3}) for n in (90, 30)]
    data = deal(*sets, clients=None, partition=ByColumn("site"))
    assert data.names == ["0", "1", "2"]
    assert data.sizes("test").tolist() == [10, 10, 10]


def test_a_column_not_shared_joins_both_sets_and_splits_each_client():
    train = pool(90, columns={"writer": np.arange(90) % 3})
    test = pool(30, columns={"writer": 5 + np.arange(30) % 2})
    data = deal(train, test, clients=None, partition=ByColumn("writer"))
    assert data.names == ["0", "1", "2", "5", "6"]
    total = sum(data.sizes(split).sum() for split in ("train", "val", "test"))
    assert total == 120
    assert data.sizes("test").tolist() == [6, 6, 6, 3, 3]


def test_rotations_are_applied_to_all_splits_and_give_clusters():
    plain = deal(pool(120), pool(60, 1), clients=3, partition=IID())
    turned = deal(pool(120), pool(60, 1), clients=3, partition=IID(), rotations="0:1,90:1,180:1")
    assert turned.clusters == (0, 1, 2)
    for angle, a, b in zip((0, 90, 180), plain, turned, strict=True):
        for split in ("train", "val", "test"):
            assert torch.equal(rotate(a.split(split).x, angle), b.split(split).x)
            assert torch.equal(a.split(split).y, b.split(split).y)


def test_flat_images_hold_the_same_pixels():
    image, flat = (digits.load(flat=value).client(0).train.x for value in (False, True))
    assert flat.shape[1:] == (64,)
    assert torch.equal(image.flatten(1), flat)


def test_examples_limits_training_and_test_images_alike():
    data = deal(pool(400), pool(200, 1), partition=IID(), examples=100)
    assert (data.sizes("train") + data.sizes("val")).sum() == 100
    assert data.sizes("test").sum() == 50
    with pytest.raises(ConfigError, match=r"examples must be in 1\.\.400"):
        deal(pool(400), None, examples=401)


def test_shares_that_leave_no_training_data_are_refused():
    with pytest.raises(ConfigError, match="together below 1"):
        ImageOptions(val=0.5, test=0.5)


@pytest.mark.parametrize("partition", [IID(), Shards(2), Dirichlet("label", 0.5)])
def test_digits_are_dealt_once_with_pixels_in_the_unit_interval(partition):
    data = digits.load(clients=10, partition=partition, seed=1)
    total = sum(data.sizes(split).sum() for split in ("train", "val", "test"))
    assert total == 1797
    for client in data:
        assert client.train.x.dtype == torch.float32
        assert client.train.x.shape[1:] == (1, 8, 8)
        assert client.train.x.min() >= 0
        assert client.train.x.max() <= 1


def test_digits_depend_on_the_seed_only():
    a, b, c = (digits.load(seed=s).client(0).train.x for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert a.shape != c.shape or not torch.equal(a, c)


def test_digits_with_chosen_outliers():
    data = digits.load(rotations="0:4,45:1")
    assert len(data) == 5
    assert data.clusters == (0, 0, 0, 0, 1)
    with pytest.raises(ConfigError, match="for 5 clients, there are 6"):
        digits.load(clients=6, rotations="0:4,45:1")


def test_mnist_refuses_an_unknown_sensitive_attribute():
    with pytest.raises(ConfigError, match="no sensitive attribute 'sex'"):
        mnist.load(sensitive="sex")


@pytest.mark.data
def test_mnist_is_whole_and_rotated_as_in_focus():
    need_mnist()
    data = mnist.load(rotations="0:7,90:2,180:1", flat=True)
    assert data.clusters == (0,) * 7 + (1,) * 2 + (2,)
    assert (data.sizes("train") + data.sizes("val")).tolist() == [6000] * 10
    assert data.sizes("test").sum() == 10_000
    assert data.schema.shape == (784,)


@pytest.mark.data
def test_mnist_by_writer_has_the_series_as_group():
    need_mnist()
    data = mnist.load(partition=ByColumn("writer"), sensitive="series")
    # 539 writers of the training set, 297 others of the test set (QMNIST's labels).
    assert len(data) == 836
    groups = torch.cat([c.split(s).group for c in data for s in ("train", "val", "test")])
    # HSF series 0: 30,950 + 4,999 digits; series 4: 29,050 + 5,001.
    assert torch.bincount(groups).tolist() == [35_949, 34_051]
    assert data.schema.groups.labels == ("census employees", "high-school students")


@pytest.mark.data
def test_cifar10_subset_is_balanced():
    need("cifar10", *cifar10.FILE)
    data = cifar10.load(clients=5, partition=IID())
    label = torch.cat([c.split(s).y for c in data for s in ("train", "val")])
    assert torch.bincount(label).tolist() == [1300] * 10
    assert data.schema.shape == (3, 32, 32)
    assert data.schema.class_names[0] == "airplane"


@pytest.mark.data
def test_femnist_clients_are_writers():
    need("femnist", *femnist.FILE)
    data = femnist.load(min_size=1)
    assert len(data) == 105
    assert data.names[0] == "f1501_00"
    assert (data.sizes("train") + data.sizes("val")).sum() == 14_708
    assert data.sizes("test").sum() == 1_685
    assert len(femnist.load(clients=7)) == 7
    assert len(femnist.load(clients=4, partition=IID())) == 4
    with pytest.raises(ConfigError, match="writers with at least"):
        femnist.load(clients=1000)


@pytest.mark.data
def test_fashion_mnist_in_shards():
    try:
        for name in fashion_mnist.FILES:
            if not (fashion_mnist.DEBIAN / name).is_file():
                locate("fashion_mnist", name, fashion_mnist.FILES[name][0], download=False)
    except DataError as error:
        pytest.skip(str(error))
    data = fashion_mnist.load(clients=100, partition=Shards(2))
    assert set((data.sizes("train") + data.sizes("val")).tolist()) == {600}
    assert data.sizes("test").sum() == 10_000
