"""Fair federated learning: to every silo, to every group, along a whole trade-off front.

Names are imported when they are first used, so that `evenfed --help` does not wait for PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "EvenfedError": "core.errors",
    "Examples": "core.examples",
    "LocalTraining": "core.local",
    "ByColumn": "data.partition",
    "ClientData": "data.dataset",
    "Dirichlet": "data.partition",
    "FederatedDataset": "data.dataset",
    "Groups": "data.dataset",
    "IID": "data.partition",
    "LabelNoise": "data.transforms",
    "QuantitySkew": "data.partition",
    "Rotations": "data.transforms",
    "Schema": "data.dataset",
    "Shards": "data.partition",
    "load": "data.registry",
    "load_silos": "data.silos",
    "FederatedClassifier": "estimators",
    "FederatedRegressor": "estimators",
    "EngineOptions": "engines.federation",
    "Federation": "engines.federation",
    "Participation": "engines.participation",
    "AAggFF": "methods.aaggff",
    "AFL": "methods.afl",
    "Centralized": "methods.centralized",
    "EBA": "methods.eba",
    "FedAvg": "methods.fedavg",
    "FedEBA": "methods.fedeba",
    "FedFV": "methods.fedfv",
    "FedMGDA": "methods.fedmgda",
    "FedMinMax": "methods.fedminmax",
    "FedProx": "methods.fedprox",
    "Focus": "methods.focus",
    "GIFAIR": "methods.gifair",
    "GroupWeighted": "methods.group_weighted",
    "HetPFL": "methods.hetpfl",
    "Local": "methods.local",
    "Method": "methods.base",
    "PracFedEBA": "methods.prac_fedeba",
    "PFFL": "methods.pffl",
    "PraFFL": "methods.praffl",
    "PropFair": "methods.propfair",
    "QFedSGD": "methods.qfedsgd",
    "QFFL": "methods.qffl",
    "Reveal": "methods.base",
    "Scaffold": "methods.scaffold",
    "SER": "methods.ser",
    "TERM": "methods.term",
    "FedAvgM": "methods.fedavgm",
    "FedAdam": "methods.fedadam",
    "FedYogi": "methods.fedyogi",
    "FineTuning": "methods.finetune",
    "Ditto": "methods.ditto",
    "PFedMe": "methods.pfedme",
    "LpProj": "methods.lp_proj",
    "IFCA": "methods.ifca",
    "PFNM": "methods.pfnm",
    "FedMA": "methods.fedma",
    "AgnosticFair": "methods.agnosticfair",
    "EquiFL": "methods.equifl",
    "FairFed": "methods.fairfed",
    "FCFL": "methods.fcfl",
    "FedFair": "methods.fedfair",
    "FedFB": "methods.fedfb",
    "LFTEnsemble": "methods.lft_ensemble",
    "LFTFedAvg": "methods.lft_fedavg",
    "register": "methods.registry",
    "Predictor": "runs.predictor",
    "Result": "runs.result",
    "audit_model": "runs.auditing",
    "export_model": "runs.export",
    "load_model": "runs.predictor",
    "advise": "runs.advice",
    "resume": "runs.train",
    "study": "runs.study",
    "train": "runs.train",
}

if TYPE_CHECKING:
    from evenfed.core.errors import EvenfedError
    from evenfed.core.examples import Examples
    from evenfed.core.local import LocalTraining
    from evenfed.data.dataset import ClientData, FederatedDataset, Groups, Schema
    from evenfed.data.partition import IID, ByColumn, Dirichlet, QuantitySkew, Shards
    from evenfed.data.registry import load
    from evenfed.data.silos import load_silos
    from evenfed.data.transforms import LabelNoise, Rotations
    from evenfed.engines.federation import EngineOptions, Federation
    from evenfed.engines.participation import Participation
    from evenfed.estimators import FederatedClassifier, FederatedRegressor
    from evenfed.methods.aaggff import AAggFF
    from evenfed.methods.afl import AFL
    from evenfed.methods.agnosticfair import AgnosticFair
    from evenfed.methods.base import Method, Reveal
    from evenfed.methods.centralized import Centralized
    from evenfed.methods.ditto import Ditto
    from evenfed.methods.eba import EBA
    from evenfed.methods.equifl import EquiFL
    from evenfed.methods.fairfed import FairFed
    from evenfed.methods.fcfl import FCFL
    from evenfed.methods.fedadam import FedAdam
    from evenfed.methods.fedavg import FedAvg
    from evenfed.methods.fedavgm import FedAvgM
    from evenfed.methods.fedeba import FedEBA
    from evenfed.methods.fedfair import FedFair
    from evenfed.methods.fedfb import FedFB
    from evenfed.methods.fedfv import FedFV
    from evenfed.methods.fedma import FedMA
    from evenfed.methods.fedmgda import FedMGDA
    from evenfed.methods.fedminmax import FedMinMax
    from evenfed.methods.fedprox import FedProx
    from evenfed.methods.fedyogi import FedYogi
    from evenfed.methods.finetune import FineTuning
    from evenfed.methods.focus import Focus
    from evenfed.methods.gifair import GIFAIR
    from evenfed.methods.group_weighted import GroupWeighted
    from evenfed.methods.hetpfl import HetPFL
    from evenfed.methods.ifca import IFCA
    from evenfed.methods.lft_ensemble import LFTEnsemble
    from evenfed.methods.lft_fedavg import LFTFedAvg
    from evenfed.methods.local import Local
    from evenfed.methods.lp_proj import LpProj
    from evenfed.methods.pfedme import PFedMe
    from evenfed.methods.pffl import PFFL
    from evenfed.methods.pfnm import PFNM
    from evenfed.methods.prac_fedeba import PracFedEBA
    from evenfed.methods.praffl import PraFFL
    from evenfed.methods.propfair import PropFair
    from evenfed.methods.qfedsgd import QFedSGD
    from evenfed.methods.qffl import QFFL
    from evenfed.methods.registry import register
    from evenfed.methods.scaffold import Scaffold
    from evenfed.methods.ser import SER
    from evenfed.methods.term import TERM
    from evenfed.runs.advice import advise
    from evenfed.runs.auditing import audit_model
    from evenfed.runs.export import export_model
    from evenfed.runs.predictor import Predictor, load_model
    from evenfed.runs.result import Result
    from evenfed.runs.study import study
    from evenfed.runs.train import resume, train

__all__ = [
    "AFL",
    "EBA",
    "FCFL",
    "GIFAIR",
    "IFCA",
    "IID",
    "PFFL",
    "PFNM",
    "QFFL",
    "SER",
    "TERM",
    "AAggFF",
    "AgnosticFair",
    "ByColumn",
    "Centralized",
    "ClientData",
    "Dirichlet",
    "Ditto",
    "EngineOptions",
    "EquiFL",
    "EvenfedError",
    "Examples",
    "FairFed",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedEBA",
    "FedFB",
    "FedFV",
    "FedFair",
    "FedMA",
    "FedMGDA",
    "FedMinMax",
    "FedProx",
    "FedYogi",
    "FederatedClassifier",
    "FederatedDataset",
    "FederatedRegressor",
    "Federation",
    "FineTuning",
    "Focus",
    "GroupWeighted",
    "Groups",
    "HetPFL",
    "LFTEnsemble",
    "LFTFedAvg",
    "LabelNoise",
    "Local",
    "LocalTraining",
    "LpProj",
    "Method",
    "PFedMe",
    "Participation",
    "PraFFL",
    "PracFedEBA",
    "Predictor",
    "PropFair",
    "QFedSGD",
    "QuantitySkew",
    "Result",
    "Reveal",
    "Rotations",
    "Scaffold",
    "Schema",
    "Shards",
    "advise",
    "audit_model",
    "export_model",
    "load",
    "load_model",
    "load_silos",
    "register",
    "resume",
    "study",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'evenfed' has no attribute '{name}'")
    return getattr(importlib.import_module(f"evenfed.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
