"""``penstock pipeline``: the jobs as commands; ``penstock.pipeline.jobs`` implements them.

The options of a command have the names of its job's parameters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from penstock.cli import printing
from penstock.cli.amounts import INTERVAL, PERIOD, TIME
from penstock.cli.options import Family, printing_options
from penstock.cli.pipeline.running import job_options, repeating_job_options, run, to_pairs
from penstock.errors import BadInput

__all__ = ["pipeline"]


def _check_table_format(ctx: click.Context, param: click.Parameter, given: str | None) -> None:
    del ctx, param
    if given not in (None, "delta"):
        raise BadInput(
            f"A lake is Delta tables, not {given}. Leave --table-format out; "
            "`penstock pipeline export` writes plain Parquet files.",
            field="table_format",
        )


@click.group(cls=Family)
def pipeline() -> None:
    """Spark jobs over all published messages.

    They run on this machine unless --master says otherwise, and may be killed and restarted at
    any moment. Requires Java and penstock[spark].

    \b
    Examples:
      penstock pipeline archive --lake ./lake
      penstock pipeline report --lake ./lake --output ./report
    """


@pipeline.command
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@repeating_job_options
def route(**options: Any) -> None:
    """Fill queues that are behind from the log.

    All of them, or those named.

    \b
    Examples:
      penstock queue create billing --filter "topic = 'orders'" --start earliest
      penstock pipeline route billing
    """
    from penstock.pipeline.jobs.route import route as job  # noqa: PLC0415

    run("route", job, **options)


@pipeline.command
@click.option(
    "--no-history",
    "history",
    flag_value=False,
    default=True,
    help="Leave out the histories of the messages.",
)
@click.option(
    "--no-compaction",
    "compaction",
    flag_value=False,
    default=True,
    help="Do not merge small files.",
)
@click.option(
    "--topic-tables/--no-topic-tables",
    default=True,
    help="Write the payloads of topics with a schema as typed columns too, below `topics`.",
)
@click.option("--skip-missing", is_flag=True, help="Continue past entries that retention removed.")
@click.option(
    "--tell/--no-tell",
    default=True,
    help="Let the broker remove archived entries immediately, or leave that to the job retention.",
)
@click.option(
    "--table-format",
    callback=_check_table_format,
    expose_value=False,
    hidden=True,
    help="Every lake is Delta tables; accepted because earlier versions had a choice.",
)
@click.option(
    "--step",
    type=click.IntRange(min=1),
    help="Log entries per commit: the most that a killed job loses.  [default: 500000]",
)
@click.option(
    "--adopt",
    is_flag=True,
    help="After a restore: continue the lake of an earlier epoch, if all entries are the same.",
)
@repeating_job_options
def archive(**options: Any) -> None:
    """Copy the log and the histories of its messages into the lake.

    The copy is read back and compared before the broker may remove anything.

    \b
    Examples:
      penstock pipeline archive --lake ./lake
      penstock pipeline archive --lake s3://bucket/lake --continuous
    """
    from penstock.pipeline.jobs.archive import archive as job  # noqa: PLC0415

    run("archive", job, **options)


@pipeline.command
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@job_options
def retention(**options: Any) -> None:
    """Remove log entries that the lake has and no queue needs.

    The copy in the lake is verified first.

    \b
    Examples:
      penstock pipeline retention --lake ./lake --dry-run
    """
    from penstock.pipeline.jobs.retention import retention as job  # noqa: PLC0415

    run("retention", job, **options)


@pipeline.command
@click.option(
    "--retention-hours",
    type=click.IntRange(min=0),
    default=168,
    show_default=True,
    metavar="HOURS",
    help="How long replaced files stay for readers that opened the lake before.",
)
@click.option("--dry-run", is_flag=True, help="Only count the files.")
@job_options
def vacuum(**options: Any) -> None:
    """Remove files of the lake that newer ones have replaced.

    \b
    Examples:
      penstock pipeline vacuum --lake ./lake --dry-run
    """
    from penstock.pipeline.jobs.vacuum import vacuum as job  # noqa: PLC0415

    run("vacuum", job, **options)


@pipeline.command
@click.option("--output", metavar="DIR", required=True, help="A folder that does not exist yet.")
@click.option("--where", metavar="FILTER", help="Only messages for which this filter is TRUE.")
@job_options
def export(**options: Any) -> None:
    """Write the messages of the lake as plain Parquet files.

    \b
    Examples:
      penstock pipeline export --lake ./lake --output ./orders --where "topic = 'orders'"
    """
    from penstock.pipeline.jobs.export import export as job  # noqa: PLC0415

    run("export", job, **options)


@pipeline.command
@click.option("--output", metavar="DIR", help="Output folder; by default the lake's `reports`.")
@click.option(
    "--period",
    "period_s",
    type=PERIOD,
    default="1d",
    show_default=True,
    help="The time that the report is about, such as 6h or 7d, or all; it is compared with the "
    "same time before.",
)
@click.option(
    "--until", "until_ms", type=TIME, help="The end of the period, in ISO form; by default now."
)
@click.option(
    "--of-tenant",
    "tenants",
    multiple=True,
    metavar="NAME=CREDENTIAL",
    callback=to_pairs,
    help="A report for this tenant below --output, and a page that compares all of them; may be "
    "repeated. A credential may be file: and a path.",
)
@repeating_job_options
def report(**options: Any) -> None:
    """Report what changed, needs attention and failed, and why.

    It writes one page with charts, and Parquet tables.

    \b
    Examples:
      penstock pipeline report --output ./report
      penstock pipeline report --lake ./lake --period 7d
      penstock pipeline report --lake ./lake --period 1d --until 2026-11-01
      penstock pipeline report --output ./report --of-tenant shop=file:shop.key
    """
    from penstock.pipeline.jobs.report import report as job  # noqa: PLC0415

    run("report", job, **options)


@pipeline.command
@click.argument("queue", required=False)
@click.option(
    "--source",
    type=click.Choice(["failed", "done", "log", "lake"]),
    default="failed",
    show_default=True,
    help="Where deliveries come from; messages from the lake are published again.",
)
@click.option("--where", metavar="FILTER", help="Only messages for which this filter is TRUE.")
@click.option(
    "--fingerprint",
    "fingerprints",
    multiple=True,
    metavar="NAME",
    help="Only failures with this fingerprint (see the report); may be repeated.",
)
@click.option("--topic", metavar="NAME", help="Publish to this topic instead, from the lake.")
@click.option("--replay-id", metavar="ID", help="A repeat with the same id moves nothing twice.")
@click.option("--rate", type=click.IntRange(min=1), metavar="N", help="Deliveries per second.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@job_options
def replay(**options: Any) -> None:
    """Redeliver messages in bulk, or publish those of the lake again.

    \b
    Examples:
      penstock pipeline replay billing --where "country = 'DE'" --dry-run
      penstock pipeline replay billing --fingerprint 3f2a9c01d4e7
      penstock pipeline replay --source lake --lake ./lake --where "topic = 'orders'"
    """
    from penstock.pipeline.jobs.replay import replay as job  # noqa: PLC0415

    run("replay", job, **options)


@pipeline.command
@click.argument("path")
@click.argument("topic")
@click.option(
    "--format",
    type=click.Choice(["parquet", "json", "csv", "text", "orc"]),
    help="The format of the files; by default that of their endings.",
)
@click.option("--value", metavar="COLUMN", help="The payload; by default the whole row, as JSON.")
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="NAME=COLUMN",
    callback=to_pairs,
    help="partition_key, replace_key, priority or headers, and the column to take it from.",
)
@click.option("--ingest-id", metavar="ID", help="By default derived from the files.")
@click.option(
    "--rejects",
    metavar="FILE",
    help="For rows that cannot be read, as JSON lines.  [default: rejects-TOPIC-ID.jsonl]",
)
@job_options
def ingest(**options: Any) -> None:
    """Publish each row of JSON, CSV, Parquet, text or ORC files once.

    JSON is published as it is written. What cannot be read goes to a file of rejects.

    \b
    Examples:
      penstock pipeline ingest orders.jsonl orders
      penstock pipeline ingest 'in/*.csv' orders --column partition_key=customer
    """
    from penstock.pipeline.jobs.ingest import ingest as job  # noqa: PLC0415

    run("ingest", job, **options)


@pipeline.command
@job_options
def verify(**options: Any) -> None:
    """Check the laws over the whole store and the lake.

    Exits with 9 if one is broken.

    \b
    Examples:
      penstock pipeline verify --lake ./lake
    """
    from penstock.pipeline.jobs.verify import verify as job  # noqa: PLC0415

    run("verify", job, **options)


@pipeline.command
@printing_options
def script() -> None:
    """Print the path of the file that spark-submit runs.

    Give spark-submit the file and then a job with its options: FILE archive --lake ./lake

    \b
    Examples:
      penstock pipeline script
    """
    path = str(Path(__file__).with_name("submit.py"))
    if not printing.as_json({"path": path}):
        click.echo(path)


@pipeline.command
@printing_options
def prepare() -> None:
    """Let jobs on this machine start faster: save Spark's classes once.

    Run it again after an update of Java or Spark. It takes a minute and 200 MB in ~/.cache.

    \b
    Examples:
      penstock pipeline prepare
    """
    from penstock.pipeline.class_archive import make_archive  # noqa: PLC0415  (needs Spark)
    from penstock.pipeline.session import check_java  # noqa: PLC0415

    check_java()
    path = make_archive()
    found = {"path": str(path), "bytes": path.stat().st_size}
    if not printing.as_json(found):
        click.echo(f"{path} ({path.stat().st_size / 1e6:.0f} MB)")


@pipeline.command("run")
@click.option("--output", metavar="DIR", help="Folder for reports; by default below the lake.")
@click.option(
    "--route-every", "route_every_s", type=INTERVAL, help="By default in every pass (--interval)."
)
@click.option(
    "--archive-every",
    "archive_every_s",
    type=INTERVAL,
    help="By default in every pass (--interval).",
)
@click.option(
    "--retention-every",
    "retention_every_s",
    type=INTERVAL,
    default="1d",
    show_default=True,
    help="Time between two passes of retention.",
)
@click.option(
    "--report-every",
    "report_every_s",
    type=INTERVAL,
    default="1h",
    show_default=True,
    help="Time between two reports.",
)
@click.option(
    "--report-period",
    "report_period_s",
    type=PERIOD,
    default="1d",
    show_default=True,
    help="The time that a report is about, or all.",
)
@click.option(
    "--without",
    type=click.Choice(["route", "archive", "retention", "report"]),
    multiple=True,
    help="Leave a duty out; may be repeated.",
)
@repeating_job_options
def run_all(**options: Any) -> None:
    """Route, archive, remove and report, in one Spark session.

    With --continuous each duty is repeated at its interval until the job is stopped.

    \b
    Examples:
      penstock pipeline run --lake ./lake --continuous
      penstock pipeline run --lake ./lake --continuous --report-every 1d --without retention
    """
    from penstock.pipeline.jobs.run import run as job  # noqa: PLC0415

    run("run", job, **options)
