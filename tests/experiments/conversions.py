"""Converts TFF's functions to graph code before a start needs them."""

from collections.abc import Callable, Iterator

from tensorflow.python.autograph.core import converter
from tensorflow.python.autograph.impl import api
from tensorflow_federated.python.learning import loop_builder, tensor_utils
from tensorflow_federated.python.learning.models import functional
from tensorflow_federated.python.learning.optimizers import nest_utils, optimizer, scheduling, sgdm
from tensorflow_federated.python.learning.templates import (
  apply_optimizer_finalizer,
  model_delta_client_work,
)


def convert() -> None:
  """Converts what a training process of a functional model calls."""
  for function, is_decorated in _functions():
    options = converter.ConversionOptions(
      recursive=True, user_requested=is_decorated, optional_features=None
    )
    plain = getattr(function, 'python_function', function)
    api._TRANSPILER.transform(plain, converter.ProgramContext(options=options))


def _functions() -> Iterator[tuple[Callable, bool]]:
  """Yields functions, and whether they are a `tf.function` of their own."""
  yield (
    model_delta_client_work.build_functional_model_delta_update(
      None, weighting=None, loop_implementation=None
    ),
    True,
  )
  for name in (
    'initialize_metrics_state',
    'predict_on_batch',
    'update_metrics_state',
    'finalize_metrics',
  ):
    yield getattr(functional.FunctionalModel, name), True
  for function in (
    sgdm._SGD.next,
    sgdm._SGD.initialize,
    nest_utils.map_at_leaves,
    nest_utils._tuplify,
    optimizer.handle_indexed_slices_gradients,
    optimizer.check_weights_gradients_match,
    optimizer.check_weights_state_match,
    scheduling._ScheduledLROptimizer.next,
    loop_builder.build_training_loop,
    loop_builder._for_iter_dataset_fn,
    tensor_utils.zero_all_if_any_non_finite,
    model_delta_client_work._choose_client_weight,
    functional.FunctionalModel.loss,
    apply_optimizer_finalizer.reject_non_finite_update,
  ):
    yield function, False
