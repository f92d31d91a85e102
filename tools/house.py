#!/usr/bin/env python3
"""Measure how readable a Python tree is: size in tokens, density, names, prose.

    python tools/house.py [--json] [NAME=DIR[,DIR...] ...]    # default: core=fintrader,app
    python tools/house.py --project [--json]                  # PPO's walk, commands, settings

Lines can be met by writing densely; tokens, names and words cannot. Every figure is a signal to
look, not a law. `--project` imports fintrader; the other figures read files only.
"""

from __future__ import annotations

import ast
import collections
import io
import json
import re
import statistics
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

Figures = dict[str, float | int]

_VERBS = """
    accept accumulate acquire act add adjust advance aggregate align allow annotate append apply
    archive ask assert assess assign attach audit average backtest backward begin bind broadcast buy
    calibrate call cancel cast check choose claim clean clear clip clone close collect combine
    compare compile compose compute concatenate configure confirm connect convert copy count create
    cut deal decide decode decrease dedent delete deny deploy derive describe detach detect disable
    discard dispatch draw drop dump emit enable encode end ensure enter enumerate estimate evaluate
    evolve execute exit expand explain explore export extend extract fail fetch fill filter find
    finish fit flatten flush follow forget format forward freeze from gather generate get give group
    guess halt handle has hash hide import improve include increase index infer inherit init
    initialise initialize insert install invoke is iterate join judge keep kill label launch lay
    learn limit link list load locate lock log look lookup make map mark mask match measure merge
    migrate move multiply mutate name normalise normalize note notify observe offer open optimise
    optimize order pad parse patch perturb pick place plan plot poll pop post predict prepare print
    process project promote propose prove publish pull push put raise rank read rebalance rebuild
    receive reconcile record recover reduce refit refuse refresh register reject release reload
    remove rename render reorder repair repeat replace replay report reproduce request require
    resample reset reshape resize resolve restore restrict resume retry return revise roll round run
    sample save scale scan schedule score search select sell send serialise serialize serve set
    settle shift show shrink shuffle shut simulate size skip sleep slice solve sort spawn split
    spread stack standardise start step stitch stop store strip submit subtract suggest sum
    summarise summarize sweep switch sync synchronise take test to trace track trade train transfer
    transform translate trim truncate try tune unlock unpack unwrap update upload use validate
    verify visit wait walk warm warn weigh widen withdraw wrap write yield can should with as build
    hold prune seal embed expect pause fold inspect swap commit pack guard identify classify
    snapshot change see tell ask estimate answer bar block bound bump cover demote diff divide echo
    embed escape exclude expire expose flag grow ground impute increment inspect interpolate keep
    lag lead lower lift mutate negate nest normalise offset own page permute pin poll price probe
    quote raise rate reach realise recompute reconnect relabel repeat reply rescale reweight seed
    separate shard sign sketch smooth snap state subscribe supervise tag tally thin throttle tighten
    touch unseal vary vote
"""
VERBS = set(_VERBS.split())
FILLERS = {"get", "make", "do", "compute", "handle", "process", "perform"}
_FORMULAS = """
    sharpe sortino calmar beta alpha volatility drawdown turnover skew kurtosis quantile mean
    variance std correlation entropy softmax sigmoid tanh gae huber loss equity exposure returns
    weights cash
"""
FORMULAS = set(_FORMULAS.split())
VALUES = (
    "property",
    "cached_property",
    "field_validator",
    "model_validator",
    "computed_field",
    "field_serializer",
    "setter",
    "fixture",
    "overload",
)
OPENINGS = re.compile(
    r"(what|whether|how|of|where|as|which|nor|so|the same|whoever|all that)\b", re.I
)
DIALECT = {
    "what": r"\bwhat\b",
    "whoever/nobody/somebody": r"\b(whoever|whom|nobody|somebody|anybody)\b",
    "told/said": r"\b(told|said)\b",
    "beside": r"\bbeside\b",
    "of its own": r"\bof (?:its|one's|their|his) own\b",
    "so many/so long": r"\bso (?:many|long|few)\b",
}
LAYOUT = (
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
BRANCHES = (
    ast.If,
    ast.For,
    ast.While,
    ast.IfExp,
    ast.ExceptHandler,
    ast.comprehension,
    ast.Assert,
    ast.match_case,
)


def list_sources(folders: list[str]) -> list[Path]:
    """List all Python files below the folders."""
    return sorted(
        path
        for folder in folders
        for path in Path(folder).rglob("*.py")
        if "__pycache__" not in path.parts
    )


def count_branches(node: ast.AST) -> int:
    """Count the cyclomatic complexity of a function."""
    return 1 + sum(
        isinstance(part, BRANCHES) or (isinstance(part, ast.BoolOp) and len(part.values) - 1)
        for part in ast.walk(node)
    )


class Counts:
    """Sums over the files of a tree."""

    def __init__(self) -> None:
        self.numbers: collections.Counter[str] = collections.Counter()
        self.strings: list[str] = []
        self.words: list[str] = []
        self.functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        self.classes: collections.Counter[str] = collections.Counter()
        self.folders: collections.defaultdict[str, set[str]] = collections.defaultdict(set)

    def add_file(self, path: Path) -> None:
        """Add the figures of one file."""
        text = path.read_text()
        rows = text.split("\n")
        numbers = self.numbers
        numbers["lines"] += text.count("\n")
        numbers["skips"] += text.count("fmt: skip") + text.count("fmt: off")
        numbers["dicts"] += len(re.findall(r"\b(?:dict|Mapping)\[str, (?:Any|object)\]", text))
        if path.name != "__init__.py":
            self.folders[path.name].add(str(path.parent))
        in_code, in_comment = self._add_tokens(text)
        in_docs = self._add_tree(ast.parse(text), in_comment)
        only_code = in_code - in_docs
        numbers["code"] += len(only_code)
        numbers["docs"] += len(in_docs)
        numbers["comments"] += len(in_comment - in_code)
        numbers["characters"] += sum(len(rows[n - 1].strip()) for n in only_code)
        numbers["wide"] += sum(len(rows[n - 1]) > 100 for n in only_code)

    def _add_tokens(self, text: str) -> tuple[set[int], set[int]]:
        """Count tokens; return the numbers of the lines with code and of those with comments."""
        in_code: set[int] = set()
        in_comment: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                in_comment.add(token.start[0])
            elif token.type not in LAYOUT:
                self.numbers["tokens"] += 1
                in_code.update(range(token.start[0], token.end[0] + 1))
        return in_code, in_comment

    def _add_tree(self, tree: ast.AST, in_comment: set[int]) -> set[int]:
        """Count names, docstrings and habits; return the numbers of the lines in docstrings."""
        in_docs: set[int] = set()
        documented: set[int] = set()
        for node in ast.walk(tree):
            self._add_habits(node, in_comment, documented)
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                in_docs.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
                self.words.append(node.value.value)
                documented.add(id(node.value))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.functions.append(node)
            elif isinstance(node, ast.ClassDef):
                self.classes[node.name] += 1
        return in_docs

    def _add_habits(self, node: ast.AST, in_comment: set[int], documented: set[int]) -> None:
        """Count a tuple assignment, a walrus, a message or a kernel without a comment."""
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Tuple)
            and isinstance(node.value, ast.Tuple)
        ):
            self.numbers["pairs"] += 1
        elif isinstance(node, ast.NamedExpr):
            self.numbers["walruses"] += 1
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and " " in node.value
            and id(node) not in documented
        ):
            self.strings.append(node.value)
        if isinstance(node, ast.FunctionDef) and any(
            "njit" in ast.unparse(decorator) for decorator in node.decorator_list
        ):
            last = node.end_lineno or node.lineno
            first = min([node.lineno, *(part.lineno for part in node.decorator_list)])
            is_bare = not in_comment & set(range(first - 3, last + 1))
            self.numbers["bare_kernels"] += last - node.lineno > 10 and is_bare


def measure(folders: list[str]) -> Figures:
    """Measure all Python files below the folders."""
    counts = Counts()
    paths = list_sources(folders)
    for path in paths:
        counts.add_file(path)
    n = counts.numbers
    lines = max(n["lines"], 1)
    code = max(n["code"], 1)
    openings = sum(bool(OPENINGS.match(text.strip())) for text in counts.words)
    openings_percent = round(100 * openings / max(len(counts.words), 1), 1)
    return {
        "modules": len(paths),
        "lines": n["lines"],
        "tokens": n["tokens"],
        "tokens_per_line": round(n["tokens"] / lines, 2),
        "characters_per_code_line": round(n["characters"] / code, 1),
        "code_lines_over_100_columns_percent": round(100 * n["wide"] / code, 2),
        "docstring_lines_percent": round(100 * n["docs"] / lines, 1),
        "comment_lines_percent": round(100 * n["comments"] / lines, 2),
        **measure_functions(counts.functions),
        "docstrings_opening_with_what_whether_how_of_percent": openings_percent,
        "dict_str_any": n["dicts"],
        "tuple_assignments": n["pairs"],
        "walruses": n["walruses"],
        "kernels_without_a_comment": n["bare_kernels"],
        "fmt_skip": n["skips"],
        "class_names_used_twice": sum(number > 1 for number in counts.classes.values()),
        "file_names_in_several_folders": sum(len(f) > 1 for f in counts.folders.values()),
        **measure_prose(counts.words, counts.strings),
    }


def measure_functions(functions: list[ast.FunctionDef | ast.AsyncFunctionDef]) -> Figures:
    """Measure length, parameters, complexity and names of functions."""
    lengths = sorted((f.end_lineno or f.lineno) - f.lineno + 1 for f in functions)
    parameters = [
        len(f.args.posonlyargs) + len(f.args.args) + len(f.args.kwonlyargs) for f in functions
    ]
    first_words = [
        f.name.lstrip("_").split("_")[0]
        for f in functions
        if not f.name.startswith("__")
        and f.name != "main"
        and not any(value in ast.unparse(d) for d in f.decorator_list for value in VALUES)
        and f.name.lstrip("_") not in FORMULAS
    ]
    named = max(len(first_words), 1)
    verb_first = sum(word in VERBS for word in first_words)
    fillers = sum(word in FILLERS for word in first_words)
    return {
        "functions": len(functions),
        "function_lines_median": statistics.median(lengths) if lengths else 0,
        "function_lines_p95": lengths[int(0.95 * (len(lengths) - 1))] if lengths else 0,
        "functions_with_more_than_8_parameters": sum(p > 8 for p in parameters),
        "functions_of_complexity_21_or_more": sum(count_branches(f) >= 21 for f in functions),
        "verb_first_percent": round(100 * verb_first / named, 1),
        "filler_verbs_percent": round(100 * fillers / named, 1),
    }


def measure_prose(docstrings: list[str], messages: list[str]) -> Figures:
    """Measure words of the dialect in docstrings and in other strings of several words."""
    prose = "\n".join(docstrings).lower()
    spoken = "\n".join(messages).lower()
    prose_words = max(len(re.findall(r"[a-z']+", prose)), 1)
    spoken_words = max(len(re.findall(r"[a-z']+", spoken)), 1)
    figures: Figures = {"docstring_words": prose_words}
    for name, pattern in DIALECT.items():
        in_prose = len(re.findall(pattern, prose))
        in_messages = len(re.findall(pattern, spoken))
        figures[f"per_1000_docstring_words: {name}"] = round(1000 * in_prose / prose_words, 2)
        figures[f"per_1000_message_words: {name}"] = round(1000 * in_messages / spoken_words, 2)
    return figures


def measure_project() -> Figures:
    """Measure the project as a whole: PPO's walk, commands and settings."""
    return {**walk_ppo(), **follow_imports(), "commands": count_commands(), **count_settings()}


def walk_ppo() -> Figures:
    """Count the files and lines that one reads to know what PPO does, from `act` to its gradient
    step.

    One rollout with the end of an episode, and the update after it, run under a profiler: `PPO()`
    with its default settings, accounts that share bars. Counted are the files of
    `fintrader/agents` in which any function runs, each with all of its lines. Files of
    `agents/fast` are left out: the readable functions run, whose place theirs take. Not counted,
    since nothing of them runs between the two: settings (declarations) and the code that builds,
    stores and loads agents.
    """
    import torch

    from fintrader.agents import PPO, fast, make_agent
    from fintrader.agents.buffers import Transition
    from fintrader.envs import ObservationLayout
    from fintrader.envs.observation import MarketTable

    layout = ObservationLayout(num_assets=4, num_features=3, num_context=2)
    accounts = 6
    agent: Any = make_agent(PPO(), layout, seed=0)
    agent.table = MarketTable((torch.randn(agent.settings.num_steps + 1, layout.market_width),))
    agent.normaliser.update_market(agent.table)
    never = torch.zeros(accounts, dtype=torch.bool)

    def observe(bar: int) -> Any:
        clock = torch.full((accounts, 1), float(bar))
        return torch.cat([torch.rand(accounts, layout.private_width), clock], dim=1)

    files: set[str] = set()
    with patch.object(fast, "is_plain_cpu", lambda x: False):
        sys.setprofile(lambda frame, event, _: files.add(frame.f_code.co_filename))
        try:
            obs = observe(0)
            for step in range(agent.settings.num_steps):
                action = agent.act(obs)
                following = observe(step + 1)
                ends = torch.full((accounts,), step == 3)
                gains = torch.randn(accounts)
                agent.observe(Transition(obs, action, gains, never, ends, following))
                obs = following
                metrics = agent.update()
        finally:
            sys.setprofile(None)
    assert metrics is not None, "the rollout was not full"
    folder = find_agents()
    walked = [
        path
        for path in map(Path, files)
        if path.is_relative_to(folder) and not path.is_relative_to(folder / "fast")
    ]
    return {"ppo_walk_files": len(walked), "ppo_walk_lines": count_lines(walked)}


def follow_imports() -> Figures:
    """Count the files and lines of `fintrader/agents` that `ppo.py` reaches by imports at module
    level, without `agents/fast`: the walk, and all that builds, stores and loads an agent."""
    folder = find_agents()
    reached: set[Path] = set()
    waiting = [folder / "ppo.py"]
    while waiting:
        path = waiting.pop()
        if path not in reached:
            reached.add(path)
            waiting += list_imports(path, folder)
    return {"ppo_imports_files": len(reached), "ppo_imports_lines": count_lines(list(reached))}


def list_imports(path: Path, folder: Path) -> list[Path]:
    """List the modules directly in `folder` that a module imports when it is imported."""
    names = [
        node.module.split(".")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module
    ]
    own = [parts[2] for parts in names if parts[:2] == ["fintrader", folder.name] and parts[2:]]
    return [folder / f"{name}.py" for name in own if (folder / f"{name}.py").is_file()]


def find_agents() -> Path:
    """Find the folder of `fintrader.agents`."""
    return Path(__file__).resolve().parents[1] / "fintrader" / "agents"


def count_lines(paths: list[Path]) -> int:
    """Count the lines of files."""
    return sum(path.read_text().count("\n") for path in paths)


def count_commands() -> int:
    """Count the commands of `fintrader`."""
    from fintrader.cli.registry import COMMANDS

    return len(COMMANDS)


def count_settings() -> Figures:
    """Count the distinct dotted names of a run's configuration, of all members of its unions."""
    from fintrader.pipeline.config import RunConfig

    return {"settings": len(set(list_settings(RunConfig)))}


def list_settings(model: Any, prefix: str = "") -> Iterator[str]:
    """List the dotted names of all settings below a model."""
    for name, field in model.model_fields.items():
        models = list(list_models(field.annotation))
        if not models:
            yield f"{prefix}{name}"
        for below in models:
            yield from list_settings(below, f"{prefix}{name}.")


def list_models(annotation: Any) -> Iterator[Any]:
    """List the settings models that an annotation names, unions looked through."""
    if hasattr(annotation, "model_fields"):
        yield annotation
        return
    for argument in get_args(annotation):
        yield from list_models(argument)


def main() -> None:
    arguments = [word for word in sys.argv[1:] if not word.startswith("--")]
    if "--project" in sys.argv:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
        measured = {"project": measure_project()}
    else:
        trees = arguments or ["core=fintrader,app"]
        pairs = [tree.split("=", 1) for tree in trees]
        measured = {name: measure(where.split(",")) for name, where in pairs}
    if "--json" in sys.argv:
        print(json.dumps(measured, indent=1))
        return
    keys = list(next(iter(measured.values())))
    width = max(map(len, keys))
    print(" " * width, *(f"{name:>12}" for name in measured))
    for key in keys:
        print(f"{key:<{width}}", *(f"{figures[key]:>12,}" for figures in measured.values()))


if __name__ == "__main__":
    main()
