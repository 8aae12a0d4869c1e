"""Audits: a mechanism is run from the outside, and its releases are tested against its claim."""

from fl_dpftrl.prove.auditing.procedure import audit as audit
from fl_dpftrl.prove.auditing.result import Audit as Audit
from fl_dpftrl.prove.auditing.result import Check as Check
