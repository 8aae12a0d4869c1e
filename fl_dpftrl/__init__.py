"""Federated learning with correlated noise, and the ε that its log proves.

The names here load on first use; TensorFlow only with a name that needs it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fl_dpftrl.version import __version__

# The same names, for editors and type checkers.
if TYPE_CHECKING:
  from fl_dpftrl.accounting import Guarantee as Guarantee
  from fl_dpftrl.accounting import account as account
  from fl_dpftrl.accounting import calibrate as calibrate
  from fl_dpftrl.adaptive_clipping import AdaptiveClipping as AdaptiveClipping
  from fl_dpftrl.aggregators import CorrelatedNoiseFactory as CorrelatedNoiseFactory
  from fl_dpftrl.aggregators.process_check import ProcessCheck as ProcessCheck
  from fl_dpftrl.aggregators.process_check import check_process as check_process
  from fl_dpftrl.auditing import Audit as Audit
  from fl_dpftrl.auditing import audit as audit
  from fl_dpftrl.bundles.checks import Verification as Verification
  from fl_dpftrl.bundles.publishing import PublicBundle as PublicBundle
  from fl_dpftrl.bundles.publishing import write_public_bundle as write_public_bundle
  from fl_dpftrl.bundles.verification import verify as verify
  from fl_dpftrl.bundles.writing import Bundle as Bundle
  from fl_dpftrl.bundles.writing import write_bundle as write_bundle
  from fl_dpftrl.comparison.sweep import Comparison as Comparison
  from fl_dpftrl.comparison.sweep import compare as compare
  from fl_dpftrl.families.banded import Banded as Banded
  from fl_dpftrl.families.banded_inverse import BandedInverse as BandedInverse
  from fl_dpftrl.families.banded_toeplitz import BandedToeplitz as BandedToeplitz
  from fl_dpftrl.families.base import Strategy as Strategy
  from fl_dpftrl.families.blt import BLT as BLT
  from fl_dpftrl.families.dense import Dense as Dense
  from fl_dpftrl.families.identity import Identity as Identity
  from fl_dpftrl.families.lambda_cgd import LambdaCGD as LambdaCGD
  from fl_dpftrl.families.low_rank import LowRank as LowRank
  from fl_dpftrl.families.registry import register as register
  from fl_dpftrl.families.stamped import Stamped as Stamped
  from fl_dpftrl.families.tree_full import TreeFull as TreeFull
  from fl_dpftrl.families.tree_online import TreeOnline as TreeOnline
  from fl_dpftrl.guarding.guard import Guard as Guard
  from fl_dpftrl.logs.schema import write_log as write_log
  from fl_dpftrl.logs.writer import LogWriter as LogWriter
  from fl_dpftrl.optimization.registry import optimize as optimize
  from fl_dpftrl.participation.schemas import FixedSeparation as FixedSeparation
  from fl_dpftrl.participation.schemas import MinSep as MinSep
  from fl_dpftrl.planning.planner import Plan as Plan
  from fl_dpftrl.planning.planner import plan as plan
  from fl_dpftrl.replaying.replay import replay as replay
  from fl_dpftrl.replaying.runs import open_run as open_run
  from fl_dpftrl.replaying.statement import Statement as Statement
  from fl_dpftrl.simulation.recording import simulate as simulate
  from fl_dpftrl.simulation.scenario import Scenario as Scenario
  from fl_dpftrl.strategies.files import StrategyFile as StrategyFile
  from fl_dpftrl.strategies.files import describe as describe
  from fl_dpftrl.strategies.files import load_strategy as load_strategy
  from fl_dpftrl.strategies.files import save_strategy as save_strategy
  from fl_dpftrl.training.loop import Observer as Observer
  from fl_dpftrl.training.loop import TrainingRun as TrainingRun
  from fl_dpftrl.training.observers import EpsilonSoFar as EpsilonSoFar
  from fl_dpftrl.training.observers import Evaluation as Evaluation
  from fl_dpftrl.training.observers import Plot as Plot
  from fl_dpftrl.training.observers import ProgressLine as ProgressLine
  from fl_dpftrl.training.observers import TensorBoard as TensorBoard
  from fl_dpftrl.training.process import build_fed_avg as build_fed_avg
  from fl_dpftrl.training.train import train as train
  from fl_dpftrl.training.trained import Trained as Trained
  from fl_dpftrl.workloads import Workload as Workload
  from fl_dpftrl.workloads import warmup_cooldown as warmup_cooldown

_HOMES = {
  'AdaptiveClipping': 'adaptive_clipping',
  'Audit': 'auditing',
  'BLT': 'families.blt',
  'Banded': 'families.banded',
  'BandedInverse': 'families.banded_inverse',
  'BandedToeplitz': 'families.banded_toeplitz',
  'Bundle': 'bundles.writing',
  'Comparison': 'comparison.sweep',
  'CorrelatedNoiseFactory': 'aggregators',
  'Dense': 'families.dense',
  'EpsilonSoFar': 'training.observers',
  'Evaluation': 'training.observers',
  'FixedSeparation': 'participation.schemas',
  'Guarantee': 'accounting',
  'Guard': 'guarding.guard',
  'Identity': 'families.identity',
  'LambdaCGD': 'families.lambda_cgd',
  'LogWriter': 'logs.writer',
  'LowRank': 'families.low_rank',
  'MinSep': 'participation.schemas',
  'Observer': 'training.loop',
  'Plan': 'planning.planner',
  'Plot': 'training.observers',
  'ProcessCheck': 'aggregators.process_check',
  'ProgressLine': 'training.observers',
  'PublicBundle': 'bundles.publishing',
  'Scenario': 'simulation.scenario',
  'Stamped': 'families.stamped',
  'Statement': 'replaying.statement',
  'Strategy': 'families.base',
  'StrategyFile': 'strategies.files',
  'TensorBoard': 'training.observers',
  'Trained': 'training.trained',
  'TrainingRun': 'training.loop',
  'TreeFull': 'families.tree_full',
  'TreeOnline': 'families.tree_online',
  'Verification': 'bundles.checks',
  'Workload': 'workloads',
  'account': 'accounting',
  'audit': 'auditing',
  'build_fed_avg': 'training.process',
  'calibrate': 'accounting',
  'check_process': 'aggregators.process_check',
  'compare': 'comparison.sweep',
  'describe': 'strategies.files',
  'load_strategy': 'strategies.files',
  'open_run': 'replaying.runs',
  'optimize': 'optimization.registry',
  'plan': 'planning.planner',
  'register': 'families.registry',
  'replay': 'replaying.replay',
  'save_strategy': 'strategies.files',
  'simulate': 'simulation.recording',
  'train': 'training.train',
  'verify': 'bundles.verification',
  'warmup_cooldown': 'workloads',
  'write_bundle': 'bundles.writing',
  'write_log': 'logs.schema',
  'write_public_bundle': 'bundles.publishing',
}
_ROOMS = ('accounting', 'error', 'runtime', 'sensitivity', 'strategies', 'workloads')

# Names of earlier releases, and what replaces them.
_GONE = {
  'catalogue': ': fl_dpftrl.strategies.files has what it had',
  'RowServer': ": an engine makes rows in this process with memory='engine', and on a Ray cluster"
  ' with noise_machines as well',
}

__all__ = ['__version__', *_HOMES, *_ROOMS]


def __getattr__(name: str) -> Any:
  if name in _HOMES:
    return getattr(importlib.import_module(f'{__name__}.{_HOMES[name]}'), name)
  if name in _ROOMS:
    return importlib.import_module(f'{__name__}.{name}')
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}{_GONE.get(name, "")}')


def __dir__() -> list[str]:
  return sorted(__all__)
