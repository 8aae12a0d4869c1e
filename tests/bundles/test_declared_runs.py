"""Bundles of runs that declared something in their log: restarts, schemas and chained digests."""

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import digests, keys, noise_record, schema

TREE = dpftrl.TreeOnline()
BLT = dpftrl.BLT([0.9, 0.5], [0.1, 0.2])


def test_a_bundle_has_all_strategies_of_its_run(tmp_path):
  metadata = noise_record.run_metadata(TREE, 4.0, clip_norm=1.0)
  with dpftrl.LogWriter(tmp_path / 'log.parquet', metadata=metadata) as log:
    for t in range(9):
      if t == 5:
        log.change_noise(5, strategy=BLT, noise_multiplier=3.0, restart=True)
      log.append(t, [f'd{t % 3}', 'x' if t % 3 else 'y'], 86400 + t)
  run = dpftrl.open_run(log.path, TREE)
  bundle = dpftrl.write_bundle(tmp_path / 'bundle', run, deltas=1e-6)
  expected = dpftrl.replay(run, deltas=1e-6)
  assert bundle.statement.worst_case == expected.worst_case
  assert bundle.statement.runs[0].later_strategies[0][1].family == 'blt'
  assert dpftrl.verify(tmp_path / 'bundle', digest=bundle.digest).passed
  # The last digest was known to whoever ran it.
  assert (tmp_path / 'bundle' / 'rounds-1.txt').read_text().split()[-1] == log.digest


def test_rows_that_the_writer_did_not_digest_are_found(tmp_path, monkeypatch):
  """A round that was exchanged after the run, with everything else made to fit."""
  rows = [(t, f'd{(t + i) % 7}') for t in range(8) for i in range(3)]
  columns = dict(rounds=[t for t, _ in rows], device_ids=[d for _, d in rows], num_rounds=8)
  honest, forged = tmp_path / 'honest.parquet', tmp_path / 'forged.parquet'
  metadata = noise_record.run_metadata(BLT, 2.0, clip_norm=1.0)
  dpftrl.write_log(honest, **columns, metadata=metadata)
  told = dpftrl.open_run(honest, BLT).log.metadata[keys.CHAIN_KEY]
  columns['device_ids'][4] = 'another'
  with monkeypatch.context() as patched:
    patched.setattr(schema.digests, 'chained_table', lambda table, num_rounds: bytes.fromhex(told))
    dpftrl.write_log(forged, **columns, metadata=metadata)
  assert digests.ROWS_KEY not in dpftrl.open_run(forged, BLT).log.metadata
  for path, fits in ((honest, True), (forged, False)):
    folder = tmp_path / f'{path.stem}-bundle'
    dpftrl.write_bundle(folder, dpftrl.open_run(path, BLT), deltas=1e-6)
    checks = {check.name: check for check in dpftrl.verify(folder).checks}
    assert checks['rounds of run 1'].passed == fits
  assert 'whose digest the writer of the log computed' in checks['rounds of run 1'].found[0]
