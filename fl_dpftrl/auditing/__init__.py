"""Statistical audits: a lower bound on ε, tests of noise and clipping."""

from fl_dpftrl.auditing.bounds import lower_bound as lower_bound
from fl_dpftrl.auditing.procedure import EXECUTORS as EXECUTORS
from fl_dpftrl.auditing.procedure import audit as audit
from fl_dpftrl.auditing.procedure import audit_subject as audit_subject
from fl_dpftrl.auditing.result import Audit as Audit
from fl_dpftrl.auditing.result import Check as Check
