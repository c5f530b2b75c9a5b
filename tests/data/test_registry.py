import pytest

from evenfed.core.errors import ConfigError
from evenfed.data import registry
from evenfed.data.partition import IID


def test_every_source_describes_itself_under_its_own_name():
    for name, info in registry.sources().items():
        assert info.name == name
        assert info.title
        assert info.clients
        assert info.needs in ("nothing", "data files", "Debian package")


@pytest.mark.parametrize("name", registry.source_names())
def test_every_source_takes_clients_partition_and_seed_and_no_open_options(name):
    import inspect

    parameters = inspect.signature(registry._loader(name)).parameters
    assert set(registry.COMMON) <= set(parameters)
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters.values())


def test_an_unknown_dataset_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"no dataset 'digts'\. Did you mean 'digits'"):
        registry.load("digts")


def test_an_unknown_option_is_refused_with_what_the_source_accepts():
    with pytest.raises(ConfigError, match=r"no option 'sigm'\. Did you mean 'sigma'.*n_test"):
        registry.load("linear", sigm=1.0)


def test_a_misspelt_common_option_is_refused():
    with pytest.raises(ConfigError, match="Did you mean 'clients'"):
        registry.load("digits", cleints=3)


def test_a_partition_may_be_text_or_an_object():
    text = registry.load("digits", clients=4, partition="iid", seed=1)
    made = registry.load("digits", clients=4, partition=IID(), seed=1)
    for a, b in zip(text, made, strict=True):
        assert (a.train.x == b.train.x).all()


def test_options_reach_the_source():
    assert registry.load("linear", d=3, n=7).client(0).train.x.shape == (7, 3)
