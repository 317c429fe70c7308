"""`trimtab set`: change how a running job draws its responses."""

import argparse
from pathlib import Path

from trimtab.cli.connect import connect
from trimtab.errors import ExitCode, UserError


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `set`."""
    parser = subparsers.add_parser(
        "set",
        help="change the sampling of a running job",
        description="Change how a running job draws its training responses, and print the step from which "
        "on. What is left out stays as it is; checkpoints keep the change, the job's file does not.",
    )
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="the run's folder")
    parser.add_argument("--temperature", metavar="T", type=float, help="divides the logits; above 0")
    parser.add_argument("--top-p", metavar="P", type=float, help="share of probability that is drawn from")
    parser.add_argument("--top-k", metavar="K", type=int, help="number of likeliest tokens; 0 for all")
    parser.add_argument(
        "--max-response-tokens",
        metavar="N",
        type=int,
        help="longest response; at most the job's spec.training.maxResponseTokens",
    )


def run(args: argparse.Namespace) -> int:
    """Tell the coordinator."""
    from trimtab.v1 import job_control_pb2 as jc

    request = jc.UpdateRolloutRequest()
    for name in ("temperature", "top_p", "top_k", "max_response_tokens"):
        value = getattr(args, name)
        if value is None:
            continue
        try:
            setattr(request, name, value)
        except ValueError as error:  # beyond what the field can carry
            raise UserError(f"--{name.replace('_', '-')} {value}: {error}") from error
    if not request.ListFields():
        raise UserError(
            "nothing to set; give at least one of --temperature, --top-p, --top-k, --max-response-tokens"
        )
    with connect(args.run_dir) as client:
        response = client.update_rollout(request)
    print(f"from step {response.effective_step} on")
    return int(ExitCode.OK)
