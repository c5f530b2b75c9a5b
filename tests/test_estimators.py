from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import evenfed as ef
from evenfed.core.errors import ConfigError, NotApplicableError

# few rounds at a high rate, so that a hundred fits are quick; the defaults pass as well
QUICK = (
    ef.FederatedClassifier(rounds=6, options={"lr": 0.4, "batch": 16}),
    ef.FederatedRegressor(rounds=8, options={"lr": 0.1, "batch": 16}),
)


@parametrize_with_checks(list(QUICK))
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    if "array_api" in str(check):
        pytest.skip("needs SCIPY_ARRAY_API in the environment")
    check(estimator)


@pytest.fixture(scope="module")
def sites() -> dict[str, Any]:
    """Three clients; at the third the label is turned round."""
    rng = np.random.default_rng(0)
    n = 240
    site = np.repeat(["north", "south", "coast"], n // 3)
    x = rng.normal(size=(n, 3))
    y = np.where((x[:, 0] > 0) ^ (site == "coast"), "yes", "no")
    return {"X": x, "y": y, "clients": site, "sensitive_features": rng.choice(["f", "m"], n)}


def fit(estimator: Any, sites: dict[str, Any]) -> Any:
    extra = {k: sites[k] for k in ("clients", "sensitive_features")}
    return estimator.fit(sites["X"], sites["y"], **extra)


def test_a_fit_is_the_methods_run_on_those_clients(sites: dict[str, Any]) -> None:
    model = fit(ef.FederatedClassifier("pffl", rounds=3), sites)
    assert model.clients_ == ("coast", "north", "south")
    assert model.groups_ == ("f", "m")
    assert model.result_.method.name == "pffl"
    assert model.result_.data.sizes("train").tolist() == [80, 80, 80]
    counts = model.result_.evaluation("train").groups()
    assert counts["examples"].tolist() == [
        int((sites["sensitive_features"] == g).sum()) for g in ("f", "m")
    ]


def test_without_clients_there_is_one_and_weights_are_those_of_that_client(
    sites: dict[str, Any],
) -> None:
    alone = ef.FederatedClassifier(rounds=3).fit(sites["X"], sites["y"])
    named = ef.FederatedClassifier(rounds=3).fit(sites["X"], sites["y"], clients=["all"] * 240)
    assert alone.clients_ == ("all",)
    assert np.array_equal(alone.predict_proba(sites["X"]), named.predict_proba(sites["X"]))


def test_personal_models_predict_for_their_clients(sites: dict[str, Any]) -> None:
    x, y, site = sites["X"], sites["y"], sites["clients"]
    model = fit(ef.FederatedClassifier("local", rounds=20), sites)
    assert model.score(x, y, clients=site) > 0.9
    # the rule of the third client is the opposite one, so its model is wrong elsewhere
    assert model.score(x, y, clients=np.where(site == "north", "coast", "north")) < 0.5
    with pytest.raises(ValueError, match=r"no model for all: predict\(X, clients=...\)"):
        model.predict(x)
    with pytest.raises(ValueError, match="client 'west' took no part"):
        model.predict(x, clients=["west"] * len(x))


def test_a_global_model_predicts_alike_for_everybody(sites: dict[str, Any]) -> None:
    model = fit(ef.FederatedClassifier(rounds=3), sites)
    whole = model.predict_proba(sites["X"])
    assert np.array_equal(whole, model.predict_proba(sites["X"], clients=sites["clients"]))
    assert np.array_equal(whole, model.predict_proba(sites["X"], clients=["west"] * 240))


@pytest.mark.parametrize("method", ["focus", "ifca", "hetpfl", "ser", "lft_ensemble", "scaffold"])
def test_every_kind_of_method_predicts_for_clients_and_for_all_if_it_can(
    method: str, sites: dict[str, Any]
) -> None:
    model = fit(ef.FederatedClassifier(method, rounds=1), sites)
    own = model.predict_proba(sites["X"], clients=sites["clients"])
    assert np.allclose(own.sum(1), 1)
    # the counts of the run's own evaluation are those of these predictions
    right = model.result_.evaluation("train").clients()["accuracy"]
    for client in model.clients_:
        rows = sites["clients"] == client
        assert model.score(
            sites["X"][rows], sites["y"][rows], clients=sites["clients"][rows]
        ) == pytest.approx(right[client])
    if method in ("focus", "ifca"):
        with pytest.raises(ValueError, match="no model for all"):
            model.predict(sites["X"])
    else:
        assert np.allclose(model.predict_proba(sites["X"]).sum(1), 1)


@pytest.mark.parametrize("method", ["fedavg", "local", "focus"])
def test_a_pickle_predicts_the_same(method: str, sites: dict[str, Any]) -> None:
    model = fit(ef.FederatedClassifier(method, rounds=2), sites)
    again = pickle.loads(pickle.dumps(model))
    ours, theirs = (m.predict_proba(sites["X"], clients=sites["clients"]) for m in (model, again))
    assert np.array_equal(ours, theirs)
    assert not hasattr(again, "result_")


def test_names_of_features_and_of_groups_are_kept(sites: dict[str, Any]) -> None:
    frame = pd.DataFrame(sites["X"], columns=["a", "b", "c"])
    groups = pd.DataFrame({"sex": sites["sensitive_features"], "old": sites["X"][:, 1] > 0})
    model = ef.FederatedClassifier(rounds=1).fit(frame, sites["y"], sensitive_features=groups)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    assert model.groups_ == ("f / False", "f / True", "m / False", "m / True")


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        ({"clients": ["a"] * 3}, "clients have 3 rows, X has 240"),
        ({"clients": [None] * 240}, "clients have 240 missing values"),
        ({"sensitive_features": ["a"] * 3}, "sensitive_features have 3 rows"),
        ({"sensitive_features": [np.nan] * 240}, "have 240 missing values"),
    ],
)
def test_arguments_that_do_not_fit_are_named(
    extra: dict[str, Any], complaint: str, sites: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=complaint):
        ef.FederatedClassifier(rounds=1).fit(sites["X"], sites["y"], **extra)


def test_a_method_that_needs_groups_says_so(sites: dict[str, Any]) -> None:
    with pytest.raises(NotApplicableError, match="needs groups"):
        ef.FederatedClassifier("pffl").fit(sites["X"], sites["y"], clients=sites["clients"])


def test_clients_and_groups_travel_through_a_pipeline_and_a_grid_search(
    sites: dict[str, Any],
) -> None:
    x, y = sites["X"], sites["y"]
    with sklearn.config_context(enable_metadata_routing=True):
        model = ef.FederatedClassifier("local", rounds=6, options={"lr": 0.4})
        model = model.set_fit_request(clients=True, sensitive_features=True)
        model = model.set_score_request(clients=True)
        pipe = make_pipeline(StandardScaler(), model)
        grid = {"federatedclassifier__rounds": [1, 6]}
        folds = StratifiedKFold(2, shuffle=True, random_state=0)
        search = GridSearchCV(pipe, grid, cv=folds)
        extra = {"clients": sites["clients"], "sensitive_features": sites["sensitive_features"]}
        search.fit(x, y, **extra)
        assert search.best_params_ == {"federatedclassifier__rounds": 6}
        best = search.best_estimator_[-1]
        assert best.clients_ == ("coast", "north", "south")
        assert best.groups_ == ("f", "m")
        scores = cross_val_score(pipe, x, y, cv=folds, params=extra)
    # a single model could not be right at the third client and at the others
    assert scores.min() > 0.75


def test_a_regressor_predicts_in_the_labels_units(sites: dict[str, Any]) -> None:
    target = 1000 + 50 * sites["X"][:, 0]
    model = ef.FederatedRegressor(rounds=20, options={"lr": 0.2})
    model.fit(sites["X"], target, clients=sites["clients"])
    assert abs(model.predict(sites["X"]).mean() - 1000) < 10
    assert model.score(sites["X"], target) > 0.95


def test_clone_and_parameters(sites: dict[str, Any]) -> None:
    model = ef.FederatedClassifier("fedprox", options={"mu": 0.5}, rounds=1)
    other = fit(clone(model), sites)
    assert other.result_.method.mu == 0.5
    again = fit(ef.FederatedClassifier(ef.FedProx(mu=0.5), rounds=1), sites)
    assert np.array_equal(other.predict_proba(sites["X"]), again.predict_proba(sites["X"]))


def test_a_number_of_rounds_that_cannot_be_is_an_error_of_ours(sites: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="'rounds'"):
        fit(ef.FederatedClassifier("fedavg", rounds=0), sites)
