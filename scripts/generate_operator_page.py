"""Writes docs/reference/operator.md: flags, settings, rights, metrics and health of `trimtab-operator`.

Everything comes from the operator's code. `--check` fails where the page has drifted and changes nothing.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from trimtab.errors import ExitCode
from trimtab_operator.adapter.children import RESYNC_S as CHILDREN_RESYNC_S
from trimtab_operator.adapter.controller import RESYNC_S
from trimtab_operator.adapter.health import JOBS_MISSED_S, PODS_SILENT_S, QUEUE_STUCK_S
from trimtab_operator.adapter.jobs import AUDIT_S
from trimtab_operator.adapter.metrics import LABELS, OperatorMetrics
from trimtab_operator.adapter.permissions import IN_JOB_NAMESPACES, IN_OWN_NAMESPACE, Permission
from trimtab_operator.adapter.progress import GONE_S, PATIENCE_S, POLL_S
from trimtab_operator.adapter.queue import MAX_BACKOFF_S
from trimtab_operator.adapter.settings import LEASE
from trimtab_operator.kube.election import LEASE_DURATION_S, RENEW_DEADLINE_S, RENEW_S
from trimtab_operator.main import build_parser

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "operator.md"

HEAD = """# The operator

<!-- Written by scripts/generate_operator_page.py from trimtab_operator: edit it there. -->

`trimtab-operator run` serves the jobs of a cluster, or of some namespaces. The chart starts it with the right
flags; on a machine of one's own it takes a kubeconfig:

    trimtab-operator run --kubeconfig ~/.kube/config --namespace my-team --identity-dir ./identity
"""

HOW = f"""
## How it works, in numbers

- A job is looked at when it, one of its pods or what its coordinator says has changed, when a deadline of it
  comes, and every {RESYNC_S / 60:.0f} minutes whatever happens. Several changes at once are one look.
  A look that failed is tried again, at first soon and in the end every {MAX_BACKOFF_S:.0f} s.
- Its Service, Secret, NetworkPolicy, budgets and claim are applied when something about them changes, and
  every {CHILDREN_RESYNC_S / 60:.0f} minutes. An object of such a name that somebody else made is left alone,
  and an event says so.
- Each running coordinator is asked for its progress every {POLL_S:.0f} s, and at once when a pod of the job
  has changed. With one that takes steps the question is left: it answers when it has news, with numbers after
  a minute, and where nothing changes at all after {PATIENCE_S[0]:.0f} to {PATIENCE_S[1]:.0f} s. One that is
  gone is noticed within {GONE_S:.0f} s all the same, as the connection is pinged.
- Once every {AUDIT_S:.0f} s the jobs are listed (by their metadata alone), so that nothing is missed where a
  watch has.
- Several operators elect a leader by the Lease `{LEASE}` in the operator's namespace. The leader
  renews it every {RENEW_S:.0f} s; without a renewal for {RENEW_DEADLINE_S:.0f} s its process ends with exit
  code 1 and is started again. Another one takes over after {LEASE_DURATION_S} s, or at once from a leader
  that ended in good order (SIGTERM). Even two that act at the same time do no harm: every write has a
  precondition.
- Logs are JSON, one object a line, with the job (`namespace/name`) and the role that the line is about.
- Exit codes: 0 stopped on request; {int(ExitCode.USER_ERROR)} a flag, a file or the way to the API server is
  wrong (one line on standard error says what); 1 anything else, after which it is to be started again.

## Health

| path | holds while |
|---|---|
| `/healthz` | something was heard of the pods within {PODS_SILENT_S:.0f} s, the watch of jobs has not \
missed changes for {JOBS_MISSED_S:.0f} s, and no job has been due for {QUEUE_STUCK_S:.0f} s. A \
restart is the cure where one fails. |
| `/readyz` | it leads and has seen every pod once, or stands by for another one that leads |
| `/metrics` | always: the metrics below |
"""


def page() -> str:
    """The whole page."""
    parts = [
        HEAD,
        "## Flags of `trimtab-operator run`\n",
        *_flags(),
        HOW,
        "## Metrics\n",
        "Prometheus metrics of the operator itself; those of the jobs' processes are in"
        " [metrics](../metrics.md). The metrics of the process (`process_*`) are there too.\n",
        *_metrics(),
        "\n## Rights\n",
        "What the operator may do, as the chart grants it: in the namespaces whose jobs it serves (in cluster"
        " mode all)\n",
        *_rights(IN_JOB_NAMESPACES),
        "\nand in its own namespace, for the lease and the Secret with the master key\n",
        *_rights(IN_OWN_NAMESPACE),
        "\nIt reads no Secret, no pod log and no node.",
    ]
    return "\n".join(parts) + "\n"


def _flags() -> Iterator[str]:
    commands = next(action.choices for action in build_parser()._actions if isinstance(action.choices, dict))
    yield "| flag | meaning |\n|---|---|"
    for action in commands["run"]._actions:
        if action.dest == "help":
            continue
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        text = (action.help or "") % {"default": action.default}
        value = f" {action.metavar}" if action.metavar else ""
        value = value or (f" {{{','.join(action.choices)}}}" if action.choices else "")
        yield f"| {names}{value} | {text} |"


def _metrics() -> Iterator[str]:
    metrics = OperatorMetrics()
    metrics.count_from(lambda: [("namespace", "phase")], lambda: [("role", "phase")])
    yield "| metric | kind | labels | meaning |\n|---|---|---|---|"
    for family in sorted(metrics.registry.collect(), key=lambda family: family.name):
        if family.name.startswith("process_"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(LABELS.get(family.name, ()))
        yield f"| `{name}` | {family.type} | {labels} | {family.documentation} |"


def _rights(permissions: frozenset[Permission]) -> Iterator[str]:
    yield "| resource | verbs |\n|---|---|"
    for group, resource in sorted({(each.group, each.resource) for each in permissions}):
        verbs = sorted(each.verb for each in permissions if (each.group, each.resource) == (group, resource))
        yield f"| {resource}{f' ({group})' if group else ''} | {', '.join(verbs)} |"


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description="Write docs/reference/operator.md.")
    parser.add_argument("--check", action="store_true", help="fail where the page has drifted")
    text = page()
    if not parser.parse_args().check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE.name} has drifted: run scripts/generate_operator_page.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
