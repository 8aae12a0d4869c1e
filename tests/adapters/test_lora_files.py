"""Refusals of the files of low-rank additions; tests/finetune reads what they hold."""

import numpy as np
import pytest

from fl_dpftrl.adapters import lora_files
from tests import made


@made.cases(
  'factors, message',
  ({}, 'must be A'),
  ({0: (np.zeros((4, 2)), np.zeros((3, 5)))}, 'must be A'),
  ({0: (np.zeros(4), np.zeros((4, 5)))}, 'must be A'),
  (
    {0: (np.zeros((4, 2)), np.zeros((2, 5))), 1: (np.zeros((4, 3)), np.zeros((3, 5)))},
    'must have one rank',
  ),
)
def test_factors_that_are_no_pairs_of_one_rank_are_refused(factors, message, tmp_path):
  with pytest.raises(ValueError, match=message):
    lora_files.write_adapter(tmp_path / 'adapter', factors)
  assert not (tmp_path / 'adapter').exists()


def test_files_are_read_by_the_library_safetensors(tmp_path):
  numpy = pytest.importorskip('safetensors.numpy')
  a, b = np.arange(8.0).reshape(4, 2), np.arange(6.0).reshape(2, 3)
  lora_files.write_adapter(tmp_path / 'adapter', {3: (a, b)}, module='mlp.up_proj')
  read = numpy.load_file(tmp_path / 'adapter' / 'adapter_model.safetensors')
  key = 'base_model.model.model.layers.3.mlp.up_proj.lora_{}.weight'
  np.testing.assert_array_equal(read[key.format('A')], a.T)
  np.testing.assert_array_equal(read[key.format('B')], b.T)
