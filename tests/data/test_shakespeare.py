import numpy as np
import pytest
import torch

from evenfed.core.errors import ConfigError, DataError
from evenfed.data.files import locate
from evenfed.data.partition import IID
from evenfed.data.sources import shakespeare

PLAY = "\n\n".join(
    f"{role}:\n{'To be, or not to be! ' * 30}" for role in ("HAMLET", "ALL", "HAMLET")
)


def decode(codes):
    return "".join(shakespeare.VOCABULARY[c] for c in codes)


def small(**options):
    given = {"clients": None, "seed": 0, "length": 10, "stride": 1, "shares": (0.1, 0.1)}
    return shakespeare.from_roles(shakespeare.read_roles(PLAY), **{**given, **options})


def test_lines_of_a_role_are_joined_in_order():
    roles = shakespeare.read_roles("A:\nOne.\nTwo.\n\nB:\nThree.\n\nA:\nFour.\n")
    assert roles == {"A": "One.\nTwo.\nFour.", "B": "Three."}


def test_a_speech_without_a_role_is_refused_without_its_words():
    with pytest.raises(DataError, match="speech 1 ") as caught:
        shakespeare.read_roles("A:\nOne.\n\nsecret words\nmore")
    assert "secret" not in str(caught.value)


def test_the_label_is_the_character_after_the_window():
    text = shakespeare.read_roles(PLAY)["HAMLET"]
    train = small().client(0).train
    for i in (0, 17, 101):
        assert decode(train.x[i].tolist()) == text[i : i + 10]
        assert decode([int(train.y[i])]) == text[i + 10]


def test_the_split_is_in_time_and_windows_do_not_cross_it():
    text = shakespeare.read_roles(PLAY)["HAMLET"]
    client = small().client(0)
    sizes = [len(text) - 2 * int(0.1 * len(text)), *[int(0.1 * len(text))] * 2]
    assert [len(client.split(s)) for s in ("train", "val", "test")] == [n - 10 for n in sizes]
    last = decode([*client.test.x[-1].tolist(), int(client.test.y[-1])])
    assert last == text[-11:]
    first_of_val = decode(client.val.x[0].tolist())
    assert first_of_val == text[sizes[0] : sizes[0] + 10]


def test_stride_steps_over_windows():
    all_windows, some = small(stride=1).client(0).train, small(stride=7).client(0).train
    assert torch.equal(all_windows.x[::7], some.x)


def test_a_character_outside_the_vocabulary_is_counted_not_shown():
    with pytest.raises(DataError, match="1 characters are outside") as caught:
        shakespeare.encode("price @ once")
    assert "@" not in str(caught.value)
    with pytest.raises(DataError, match="2 characters are outside"):
        shakespeare.encode("caf\u00e9 \U0001f600")


def test_clients_are_drawn_by_the_seed():
    assert small(clients=1).names in (["HAMLET"], ["ALL"])
    with pytest.raises(ConfigError, match="2 roles with enough text, not 3"):
        small(clients=3)


@pytest.mark.parametrize(
    "options",
    [{"partition": IID()}, {"min_characters": 500}, {"stride": 0}, {"val": 0.5, "test": 0.5}],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError):
        shakespeare.load(**options)


def test_the_advised_least_number_of_characters_is_enough():
    with pytest.raises(ConfigError, match="use at least 811"):
        shakespeare.load(min_characters=500)
    codes = np.zeros(int(0.1 * 811), np.int64)
    assert len(shakespeare.windows(codes, 80, 10)) == 1


@pytest.mark.data
def test_tinyshakespeare_has_141_roles_with_a_thousand_characters():
    try:
        locate("shakespeare", *shakespeare.FILE, download=False)
    except DataError as error:
        pytest.skip(str(error))
    data = shakespeare.load()
    assert len(data) == 141
    assert data.schema.vocabulary == 65
    assert data.client(0).train.x.dtype == torch.int64
    for split in ("train", "val", "test"):
        assert data.sizes(split).min() >= 1
    assert len(shakespeare.load(clients=12, seed=3)) == 12
