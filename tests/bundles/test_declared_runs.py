"""Bundles of runs whose log has a chained digest of its rounds."""

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import digests, keys, noise_record, schema

BLT = dpftrl.BLT([0.9, 0.5], [0.1, 0.2])


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
