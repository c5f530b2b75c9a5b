import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenfed.core.errors import ConfigError, DataError
from evenfed.data.partition import (
    IID,
    ByColumn,
    Dirichlet,
    FixedShares,
    PartitionInput,
    QuantitySkew,
    Shards,
    parse_partition,
)
from evenfed.data.sources import synthetic
from evenfed.data.split import cells, follow_mix, split_rows
from evenfed.data.transforms import LabelNoise, Rotations


def table(size, classes=3, groups=2, seed=0):
    rng = np.random.default_rng(seed)
    return PartitionInput(
        rng.integers(0, classes, size),
        rng.integers(0, groups, size),
        {"site": rng.choice(["x", "y", "z"], size)},
    )


def assert_each_row_once(parts, size):
    assert sorted(np.concatenate(parts).tolist()) == list(range(size))
    assert all(part.dtype == np.int64 for part in parts)
    assert all((np.diff(part) > 0).all() for part in parts)


PARTITIONERS = st.one_of(
    st.just(IID()),
    st.builds(
        Dirichlet,
        st.sampled_from(["label", "sensitive", "label*sensitive", "site"]),
        st.floats(0.05, 100.0),
        st.integers(0, 3),
    ),
    st.builds(Shards, st.integers(1, 3)),
    st.builds(QuantitySkew, st.floats(0.0, 3.0), st.none(), st.integers(0, 3)),
    st.builds(QuantitySkew, st.none(), st.floats(0.05, 10.0), st.integers(0, 3)),
)


@settings(max_examples=150, deadline=None)
@given(PARTITIONERS, st.integers(1, 300), st.integers(1, 12), st.integers(0, 2**32))
def test_a_partition_deals_every_example_once_or_says_what_to_change(
    partition, size, clients, seed
):
    rows = table(size, seed=seed)
    try:
        parts = partition.assign(rows, clients, seed)
    except DataError as error:
        assert "fewer clients" in str(error)  # noqa: PT017
        return
    assert len(parts) == clients
    assert_each_row_once(parts, size)
    assert min(len(part) for part in parts) >= getattr(partition, "min_size", 0)
    names = partition.names(rows, clients)
    assert len(set(names)) == clients
    again = partition.assign(rows, clients, seed)
    assert all((a == b).all() for a, b in zip(parts, again, strict=True))


@given(st.integers(1, 200), st.integers(1, 20), st.integers(0, 100))
def test_iid_sizes_differ_by_at_most_one(size, clients, seed):
    if clients <= size:
        sizes = [len(part) for part in IID().assign(table(size), clients, seed)]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("partition", [IID(), Dirichlet(), Shards(2), QuantitySkew(1.0)])
def test_another_seed_gives_another_partition(partition):
    rows = table(500)
    first, second = (partition.assign(rows, 5, seed) for seed in (0, 1))
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(first, second, strict=True))


def test_by_column_makes_a_client_a_value_and_names_it():
    rows = table(60)
    parts = ByColumn("site").assign(rows, None, 0)
    assert_each_row_once(parts, 60)
    assert ByColumn("site").names(rows, 3) == ["x", "y", "z"]
    for name, part in zip("xyz", parts, strict=True):
        assert set(rows.columns["site"][part]) == {name}


def test_by_column_refuses_another_number_of_clients():
    with pytest.raises(ConfigError, match="makes 3 clients, not 5"):
        ByColumn("site").assign(table(60), 5, 0)


def test_an_unknown_column_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"no column 'sit' .*'site'"):
        ByColumn("sit").assign(table(60), None, 0)


def test_a_continuous_column_is_refused():
    rows = PartitionInput(np.linspace(0, 1, 50), np.zeros(50, np.int64))
    with pytest.raises(ConfigError, match="'label' is continuous"):
        Dirichlet("label", 1.0).assign(rows, 2, 0)


def test_columns_of_unlike_length_are_refused():
    with pytest.raises(DataError, match="'sensitive' has 2 rows, expected 3"):
        PartitionInput(np.zeros(3), np.zeros(2, np.int64))


def test_dirichlet_with_large_alpha_gives_every_client_the_same_mix():
    rows = table(6000)
    for part in Dirichlet("label", 1e6).assign(rows, 4, 0):
        share = np.bincount(rows.label[part]) / np.bincount(rows.label)
        assert np.allclose(share, 0.25, atol=0.01)


def test_dirichlet_with_small_alpha_gives_a_value_to_few_clients():
    rows = table(3000, classes=10)
    parts = Dirichlet("label", 0.01, min_size=0).assign(rows, 5, 0)
    table_of_counts = np.array([np.bincount(rows.label[p], minlength=10) for p in parts])
    largest_share = (table_of_counts.max(axis=0) / table_of_counts.sum(axis=0)).mean()
    assert largest_share > 0.9


def test_dirichlet_over_groups_leaves_the_label_mix_within_a_group_alone():
    rows = table(20000)
    for part in Dirichlet("sensitive", 0.5).assign(rows, 3, 0):
        for group in (0, 1):
            inside = part[rows.group[part] == group]
            if len(inside) > 1000:
                share = np.bincount(rows.label[inside], minlength=3) / len(inside)
                assert np.allclose(share, 1 / 3, atol=0.06)


def test_dirichlet_that_cannot_reach_min_size_says_what_to_change():
    with pytest.raises(DataError, match="raise alpha, use fewer clients or lower min_size"):
        Dirichlet("label", 0.001, min_size=30).assign(table(300, classes=2), 8, 0)


def test_too_many_clients_are_refused_at_once():
    with pytest.raises(DataError, match="50 examples cannot give 10 clients at least 10 each"):
        Dirichlet("label", 1.0).assign(table(50), 10, 0)


def test_shards_give_few_classes_and_equal_sizes():
    label = np.repeat(np.arange(10), 60)
    rows = PartitionInput(label, np.zeros(600, np.int64))
    parts = Shards(2).assign(rows, 10, 3)
    assert {len(part) for part in parts} == {60}
    assert all(len(np.unique(label[part])) <= 2 for part in parts)


def test_quantity_skew_with_zero_sigma_is_even_and_takes_one_parameter():
    assert {len(p) for p in QuantitySkew(0.0).assign(table(100), 4, 0)} == {25}
    with pytest.raises(ConfigError, match="either sigma or alpha"):
        QuantitySkew(1.0, 1.0)
    with pytest.raises(ConfigError, match="either sigma or alpha"):
        QuantitySkew()


def test_quantity_skew_survives_a_huge_sigma():
    parts = QuantitySkew(5000.0, min_size=0).assign(table(100), 4, 0)
    assert_each_row_once(parts, 100)


def test_fixed_shares_cut_in_order():
    rows = PartitionInput(np.zeros(10), np.array([0] * 5 + [1] * 5))
    shares = {0: (0.4, 0.6), 1: (0.8, 0.2)}
    parts = FixedShares(shares, shuffle=False).assign(rows, 2, 0)
    assert [part.tolist() for part in parts] == [[0, 1, 5, 6, 7, 8], [2, 3, 4, 9]]


@pytest.mark.parametrize("shares", [{0: (0.5, 0.6)}, {0: (1.5, -0.5)}, {0: (0.5, 0.5), 1: (1.0,)}])
def test_fixed_shares_refuse_a_wrong_table(shares):
    with pytest.raises(ConfigError, match=r"shares|same number"):
        FixedShares(shares)


def test_fixed_shares_need_every_value_and_the_right_number_of_clients():
    with pytest.raises(ConfigError, match="lacks 1 value"):
        FixedShares({0: (0.5, 0.5)}).assign(table(60), 2, 0)
    with pytest.raises(ConfigError, match="for 2 clients, not 3"):
        FixedShares({0: (0.5, 0.5), 1: (0.5, 0.5)}).assign(table(60), 3, 0)


@pytest.mark.parametrize(
    ("text", "partition"),
    [
        ("iid", IID()),
        ("dirichlet:label:0.5", Dirichlet("label", 0.5)),
        ("dirichlet:label*sensitive:2:5", Dirichlet("label*sensitive", 2.0, 5)),
        ("shards:2", Shards(2)),
        ("column:site", ByColumn("site")),
        ("column:a:b", ByColumn("a:b")),
        ("quantity:1.0", QuantitySkew(1.0)),
    ],
)
def test_partitions_are_read_from_text_and_written_back(text, partition):
    assert parse_partition(text) == partition
    assert parse_partition(str(partition)) == partition


@pytest.mark.parametrize(
    "text", ["", "dirichlet", "dirichlet:label:x", "shards:1.5", "iid:3", "column", "dirichlet:y:0"]
)
def test_unreadable_partitions_are_refused(text):
    with pytest.raises(ConfigError):
        parse_partition(text)


@given(st.integers(0, 60), st.floats(0, 0.49), st.floats(0, 0.5), st.integers(0, 9))
def test_split_rows_keeps_every_row_and_at_least_one_for_training(size, val, test, seed):
    rest, parts = split_rows(np.arange(size), (val, test), np.random.default_rng(seed))
    assert sorted(np.concatenate([rest, *parts]).tolist()) == list(range(size))
    assert len(rest) >= min(size, 1)


@settings(max_examples=50, deadline=None)
@given(st.integers(20, 400), st.integers(0, 200), st.integers(1, 8), st.integers(0, 99))
def test_test_rows_follow_the_training_mix_and_are_dealt_once(size, held, clients, seed):
    train, test = table(size, seed=seed), table(held, seed=seed + 1)
    parts = IID().assign(train, clients, seed)
    mix, test_mix = (cells(t.label, t.group) for t in (train, test))
    dealt = follow_mix(mix, parts, test_mix, seed)
    assert_each_row_once(dealt, held)


def test_a_client_without_a_class_gets_no_test_example_of_it():
    label = np.repeat(np.arange(4), 25)
    mix = cells(label, np.zeros(100, np.int64))
    parts = Shards(1).assign(PartitionInput(label, np.zeros(100, np.int64)), 4, 0)
    for part, test_part in zip(parts, follow_mix(mix, parts, mix, 0), strict=True):
        assert set(label[test_part]) == set(label[part])


def test_rounding_of_test_rows_does_not_favour_the_same_clients():
    label = np.arange(1000) % 10
    rows = PartitionInput(label, np.zeros(1000, np.int64))
    parts = IID().assign(rows, 50, 0)
    test = np.arange(250) % 10
    sizes = [len(p) for p in follow_mix(label, parts, test, 0)]
    assert min(sizes) >= 1
    assert max(sizes) <= 12


def test_rotations_give_angles_and_clusters_and_must_fit_the_clients():
    rotations = Rotations.parse("0:7,90:2,180:1")
    assert rotations.clusters(10) == [0] * 7 + [1] * 2 + [2]
    assert rotations.angles(10)[7:] == [90, 90, 180]
    with pytest.raises(ConfigError, match="for 10 clients, there are 9"):
        rotations.angles(9)
    with pytest.raises(ConfigError, match="cannot read rotations"):
        Rotations.parse("90")


def test_label_noise_touches_only_training_labels_of_chosen_clients():
    clean = synthetic.load(seed=0)
    noisy = LabelNoise((0, 2), rate=0.3).apply(clean, seed=5)
    for k, (a, b) in enumerate(zip(clean, noisy, strict=True)):
        changed = (a.train.y != b.train.y).float().mean().item()
        assert changed == pytest.approx(0.3 if k != 1 else 0.0, abs=0.05)
        assert (a.train.x == b.train.x).all()
        assert (a.val.y == b.val.y).all()
        assert (a.test.y == b.test.y).all()
    again = LabelNoise((0, 2), rate=0.3).apply(clean, seed=5)
    assert (again.client(0).train.y == noisy.client(0).train.y).all()


def test_label_noise_of_rate_one_changes_every_label_to_another_class():
    from evenfed.data.sources import digits

    clean = digits.load(clients=3, seed=0)
    noisy = LabelNoise((1,), rate=1.0).apply(clean, seed=0)
    before, after = clean.client(1).train.y, noisy.client(1).train.y
    assert (before != after).all()
    assert int(after.min()) >= 0
    assert int(after.max()) <= 9


def test_label_noise_works_on_a_lazy_population():
    from evenfed.data.sources import population

    clean = population.load(clients=10**6)
    noisy = LabelNoise((7,), rate=1.0).apply(clean, seed=0)
    assert noisy.lazy
    assert (clean.client(7).train.y != noisy.client(7).train.y).all()
    assert (clean.client(8).train.y == noisy.client(8).train.y).all()


def test_label_noise_refuses_what_it_cannot_do():
    from evenfed.data.sources import linear

    with pytest.raises(ConfigError, match="must be in"):
        LabelNoise((0,), rate=1.5)
    with pytest.raises(ConfigError, match="unknown label noise"):
        LabelNoise((0,), rate=0.5, kind="pairwise")
    with pytest.raises(ConfigError, match="no client 3 of 3"):
        LabelNoise((3,), rate=0.5).apply(synthetic.load(), seed=0)
    with pytest.raises(ConfigError, match="classification"):
        LabelNoise((0,), rate=0.5).apply(linear.load(), seed=0)
