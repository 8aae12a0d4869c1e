"""Which clusters are taken, and when their head is given up."""

import pytest

ray = pytest.importorskip('ray')
from ray._private import services  # noqa: E402

from tff_inprocess import ray_cluster  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(name='connected')
def fixture_connected(cluster, monkeypatch):
  ray_cluster.connect(cluster.address)
  monkeypatch.setattr(ray, 'shutdown', lambda: None)  # Other tests use the connection.


@pytest.mark.parametrize('setting', [False, True])
def test_a_cluster_with_other_machines_must_ask_for_a_token(connected, monkeypatch, setting):
  """A setting of this process does not help where the cluster answers anybody."""
  monkeypatch.setattr(ray_cluster, '_is_here', lambda host: False)
  monkeypatch.setattr(ray_cluster, '_is_protected', lambda: setting)
  with pytest.raises(ValueError, match='has other machines, .* and neither token nor TLS'):
    ray_cluster.connect('auto')
  ray_cluster.connect('auto', insecure_network=True)
  monkeypatch.setattr(ray_cluster, '_STRANGER', 'raise SystemExit("no token")')
  if setting:
    ray_cluster.connect('auto')
  else:
    with pytest.raises(ValueError, match='neither token nor TLS'):
      ray_cluster.connect('auto')


def test_one_of_several_clusters_must_be_named(monkeypatch):
  monkeypatch.setattr(ray, 'is_initialized', lambda: False)
  monkeypatch.setattr(services, 'find_gcs_addresses', lambda: {'1.2.3.4:5', '1.2.3.4:6'})
  monkeypatch.delenv('RAY_ADDRESS', raising=False)
  with pytest.raises(ValueError, match="several Ray clusters .* at '1.2.3.4:5, 1.2.3.4:6': give"):
    ray_cluster.connect('auto')
  with pytest.raises(ValueError, match="address must be host:port of a cluster's head or 'auto'"):
    ray_cluster.connect('nowhere')
  monkeypatch.setenv('RAY_ADDRESS', 'localhost:1')
  with pytest.raises(ValueError, match="no Ray cluster answers at 'localhost:1'"):
    ray_cluster.connect('auto')


def test_a_head_that_stays_away_is_given_up(connected, monkeypatch):
  monkeypatch.setattr(ray_cluster, '_LOOK_SECONDS', 0.0)
  monkeypatch.setattr(ray_cluster, '_GONE_SECONDS', 0.0)
  head = ray_cluster.Head()
  head.check()
  address, head._address = head._address, 'localhost:1'
  head.check()
  head._address = address
  head.check()  # It was started again.
  head._address = 'localhost:1'
  head.check()
  with pytest.raises(ray_cluster.NoActorError, match="cluster's head at 'localhost:1' is gone"):
    head.check()
