from fl_dpftrl.accounting import losses

LOSS = losses.PrivacyLoss(
  sensitivity=2.0,
  sensitivity_kind='upper_bound',
  effective_noise_multiplier=1.5,
  rho=0.25,
  curve=(losses.Point(1e-6, 3.0), losses.Point(1e-9, 4.0)),
)


def test_json_has_the_curve_if_it_has_several_points():
  assert LOSS.to_json() == {
    'sensitivity': 2.0,
    'sensitivity_kind': 'upper_bound',
    'effective_noise_multiplier': 1.5,
    'rho': 0.25,
    'mu': 1 / 1.5,
    'epsilon': 3.0,
    'curve': [{'delta': 1e-6, 'epsilon': 3.0}, {'delta': 1e-9, 'epsilon': 4.0}],
  }
  single = losses.PrivacyLoss(**{**vars(LOSS), 'curve': LOSS.curve[:1]})
  assert 'curve' not in single.to_json()


def test_voided_keeps_the_sensitivity_alone():
  void = LOSS.voided()
  assert (void.rho, void.epsilon) == (None, None)
  assert void.curve == ((1e-6, None), (1e-9, None))
  assert (void.sensitivity, void.effective_noise_multiplier) == (2.0, 1.5)
