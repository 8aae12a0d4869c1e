"""Bundles of runs whose log has a chained digest of its rounds."""

import pyarrow as pa
import pyarrow.parquet as pq

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import keys, ledger, log, noise_record, schema

BLT = dpftrl.BLT([0.9, 0.5], [0.1, 0.2])


def test_rows_that_the_writer_did_not_digest_are_found(tmp_path):
  """A round that was exchanged after the run, with everything else made to fit."""
  honest, forged = tmp_path / 'honest.parquet', tmp_path / 'forged.parquet'
  metadata = noise_record.run_metadata(BLT, 2.0, clip_norm=1.0)
  with ledger.LogWriter(honest, metadata=metadata) as writer:
    for t in range(8):
      writer.append(t, [f'd{(t + i) % 7}' for i in range(3)], 100 + t)
  told = dict(log.read_log(honest).metadata)
  assert keys.CHAIN_KEY in told
  table = pq.read_table(honest)
  ids = table.column('device_id').to_pylist()
  ids[4] = 'another'
  table = table.set_column(1, 'device_id', pa.array(ids))
  with schema.appending(forged, schema.with_timestamps(pa.string()), told) as append:
    append(table.replace_schema_metadata(None))
  for path, fits in ((honest, True), (forged, False)):
    folder = tmp_path / f'{path.stem}-bundle'
    dpftrl.write_bundle(folder, dpftrl.open_run(path, BLT), deltas=1e-6)
    checks = {check.name: check for check in dpftrl.verify(folder).checks}
    assert checks['rounds of run 1'].passed == fits
  assert 'whose digest the writer of the log computed' in checks['rounds of run 1'].found[0]
