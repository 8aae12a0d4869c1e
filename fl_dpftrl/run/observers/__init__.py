"""Observers of `train` and `PrivateAggregator`: progress, trackers, and files that tools watch."""

from fl_dpftrl.run.observers.events import JsonLines as JsonLines
from fl_dpftrl.run.observers.events import OpenMetrics as OpenMetrics
from fl_dpftrl.run.observers.measuring import EpsilonSoFar as EpsilonSoFar
from fl_dpftrl.run.observers.measuring import Evaluation as Evaluation
from fl_dpftrl.run.observers.measuring import Seconds as Seconds
from fl_dpftrl.run.observers.observer import Observer as Observer
from fl_dpftrl.run.observers.progress import ProgressLine as ProgressLine
from fl_dpftrl.run.observers.trackers import MLflow as MLflow
from fl_dpftrl.run.observers.trackers import TensorBoard as TensorBoard
from fl_dpftrl.run.observers.trackers import WandB as WandB
