"""The moments at which a feature takes part in a build: the contract between core and features.

The core builds, stores and validates packages. A feature is a folder in `pipeline/features/` that
the core can do without. Its `__init__.py` declares `FEATURE = Feature(...)`, whose fields are the
moments listed below, grouped by the part of a build in which they occur. Each moment names a
function as `"module:function"`. The function is imported at its moment, so a feature that is
installed but not used costs only the import of its declaration. The core imports no feature;
deleting a feature's folder leaves a build that works without it.

Another distribution provides a feature through an entry point of the group `pte_pipeline.features`,
whose name is the feature's name and whose value is its declaration
(`my_distribution.feature:FEATURE`).

The contract is a plain frozen record rather than pluggy. Importing pluggy and registering 20
plugins takes 35 ms of a no-op run, against 9 ms here, and pluggy finds hooks by the function's
name, which import-linter, mypy and a reader's search do not follow.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from importlib.metadata import EntryPoints, distributions, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, dataclass_transform

GROUP = "pte_pipeline.features"
# The kinds of keys that can contain the code of a moment.
KEYS = (
    "plan",
    "build",
    "export",
    "measure",
    "report",
)
FOLDER = Path(__file__).with_name("features")


class Command(NamedTuple):
    """A command of the command line.

    Attributes:
        summary: one line.
        words: the words that may follow its name.
        options: the help for its flags (`name`) and for its options with a value (`name VALUE`),
            which may appear anywhere after its name.
        more: further lines of its help.
        examples: command lines, each with what it does.
        run: for a feature's verb, the function that takes the plan and the words, and yields lines
            to print.
        builds: whether it builds packages, which requires a known toolchain.
        anywhere: whether it needs no workspace: its function takes the words and a folder, prints,
            and returns the exit status.
        record: for a verb with an option `json`, the outline of the record that it yields in place
            of lines if the option is set, as `"module:NAME"`; an outline for
            `store.forms.check_of`.
    """

    name: str
    summary: str
    words: str = ""
    options: Mapping[str, str] = MappingProxyType({})
    more: str = ""
    examples: tuple[tuple[str, str], ...] = ()
    run: str = ""
    builds: bool = False
    anywhere: bool = False
    record: str = ""


class Setting(NamedTuple):
    """A setting of a workspace, in `[tool.pte-pipeline]` or the environment.

    Attributes:
        parse: takes the value and the workspace's folder; raises ValueError if the value is wrong.
        expected: what the value must be, in words.
        meaning: what the setting does, in a sentence.
        default: the default, in words.
        has_variable: whether an environment variable can set it.
    """

    parse: Callable[[Any, Path], Any]
    expected: str
    meaning: str
    default: str = "not set"
    has_variable: bool = True


_NONE: Mapping[str, Any] = MappingProxyType({})


# The kinds of keys that contain the code of each moment, by moment.
_KEYS_OF_MOMENTS: dict[str, list[str]] = {}


class _Moment:
    """The declaration of a moment in a class, which its default replaces."""

    def __init__(self, keys: str, default: Any = "") -> None:
        """Declare a moment.

        Args:
            keys: the kinds of actions whose keys contain the code that takes part in the moment
                (`store.toolchain.code`), separated by spaces, so that results of other code are
                never used.
        """
        self._keys = keys.split()
        self._default = default

    def __set_name__(self, feature: type[Feature], name: str) -> None:
        _KEYS_OF_MOMENTS[name] = self._keys
        setattr(feature, name, self._default)


_moment: Any = _Moment  # a declaration of a field of any type


@dataclass_transform(frozen_default=True)
def _plain_dataclass(feature: Any) -> Any:
    """Let a class take its fields as arguments; a dataclass would cost a no-op run 4 ms."""

    def take(self: Feature, name: str, summary: str, **moments: Any) -> None:
        for moment in moments:
            getattr(feature, moment)  # raises AttributeError if there is none
        vars(self).update(moments, name=name, summary=summary)

    feature.__init__ = take
    return feature


@_plain_dataclass
class Feature:
    """The additions of one feature to a build.

    Attributes:
        name: the name of its folder.
        summary: what a build can't do without it, in one line.

        Command line

        verbs: the commands that it adds.
        options: options with a value that any command line may have, such as `--toolchain NAME`, by
            name; each function takes the value, the words without the option and the workspace's
            folder, before anything is planned.
        option_help: the help for the options that it takes from any command line, by the option as
            it is written.
        rewrite_words: takes the name of doit's command (`run` for our own commands), the words
            after it, and the workspace's folder; returns words that doit and the core know.
        split_command: takes the words of a command line and the workspace's folder; returns None if
            this process runs all of it, or else the words that it runs (None for none), and a
            function that runs the rest and returns the exit status.
        before_command: takes the workspace, and whether the command builds packages, before the
            command does anything; raises PipelineError to refuse it.
        help_pages: takes the words for which help is requested, and the program's name; returns
            lines, or None for unknown words.
        suggest_page: takes a word that `help` has no page for; returns a hint at a page with a
            similar name, or "".
        reporters: reporters for `doit -r`, by name.

        Config and plan

        settings: the workspace settings that it reads, by name; each name begins with the feature's
            name.
        config: functions by the section of a config to which they add keys, such as
            `validate.gates`, `package` for the top level, or `target` for a file of `targets/`;
            each returns types and `pydantic.Field`s by name.
        expand_matrix: takes the `config.yaml.Node` of a config's `matrix`, its
            `config.variables.Variables`, the name of its file, the node of its `package` or None,
            and the node of the rest of the config; returns the `config.variables.Combination` of
            each package by name.
        explain_key: takes the model of a config's section, and a key that the section doesn't have;
            returns what to do about it, or "".
        explain_syntax: takes the text of a config, and the `yaml.MarkedYAMLError` of reading it;
            returns the number of a line, from 1, what is wrong there, or "", and what to do.
        edit_config: takes the text of a config file, the path of a mapping in it in the form of a
            `config.yaml.Node`, keys that lead from there to a mapping that needn't exist, and
            members for that mapping, `...` for a member to remove; returns the edited text, or None
            if it can't edit without changing anything else.
        parse_baseline: takes the content of a baseline and its file's name; returns the accepted
            figures, as JSON. Raises ConfigErrors, with every mistake.
        check_files: takes a plan; yields mistakes in files that no config needs to name.
        schemas: by path in a workspace, functions that return the JSON Schema to write there for
            editors; each takes the `pydantic.json_schema.GenerateJsonSchema` that generates the
            schema of configs.
        entries: a module for the catalogue, whose `ENTRIES` are `backends.entry.Backend`s, or whose
            `QUANTIZERS` are quantizers without a backend; its folder has their data files
            (`backends.families`). The catalogue imports it while being made.
        backends: takes the `backends.entry.Backend`s of this package by name; returns further
            backends by name and, by the name of a plugin, what is wrong with the unusable ones.
        unknown_options: takes a `backends.entry.Backend` and its `backends.options.Options` from a
            config; yields the name of each option that the installed ExecuTorch doesn't take, with
            a hint at the known ones.
        describe_outdated: returns a message if the known options were described for another version
            than the installed one, or "".
        summarize: takes a `config.models.PackageConfig`, and whether it contains values of
            variables, which must not be kept as they are; returns JSON that the plan keeps about
            the config, or None if the feature plays no part in the package.
        planning: a class like `plan.planning.Planning`; a plan has one object of it, for the
            packages that `summarize` returned something for.
        remarks: takes a plan; yields `store.errors.Problem`s to report as warnings in each run.
        kinds: by name, functions that return a `plan.kinds.kind.Kind`: a kind of action whose
            result a compilation reads in place of a method's program. The core knows one,
            `quantize`.
        user_code: by the kind of workspace code that configs name, `passes` or `operators`, a class
            like `plan.user_code.UserCode`, which finds what this code depends on.
        elsewhere: takes a `plan.config_cache.ConfigCache`; returns the packages that other
            processes build, which this process's plan leaves out.
        describe_key: takes a `store.json_diff.Difference` of two keys; returns words if its field
            belongs to the feature, and None otherwise.
        explain_compile: takes a stale compile action and the workspace; returns a sentence for
            `doit explain`, or "".

        Run

        executors: functions that open executors, by the name with which the setting `executor`
            begins; each takes the workspace, the number of jobs, whether actions run regardless of
            what is in the store, and the whole setting; returns a `run.executors.Executor`.
        other_tasks: takes the plan, and a function that makes our doit tasks again; called if a
            dodo file also has other tasks; returns an object like
            `features.other_tasks.phases.OtherTasks`, which determines the order of all tasks.
        pending_tasks: takes the plan, and a function that loads the tasks of a dodo file; returns
            the `plan.status.Status` of actions that wait for other tasks, by package and kind.
        expect_costs: a class like `run.admission.NoExpectations`, of which a run has one object;
            takes the store.
        start_process: starts a fresh process in place of a fork; takes the function to call there,
            which ends the process, and a function that makes the context of the call; returns the
            process's number.
        perform: by the name of a kind in `kinds`, functions that perform its actions in a worker;
            each takes the action, the workspace and `run.stages.Stages`, and puts the result into
            the store.
        live_view: returns a context manager that shows progress, and yields the function to call
            with each `report.events.Event`; takes the stream, the actions, a `run.batch.Outlook`,
            and the function that writes a line about an event. Its libraries are imported when it
            is entered.
        explain_error: takes the error that ended an action and the workspace's folder; returns a
            line that says where and why.
        show_error: takes the text of an error, and the kind of the action that failed or "";
            returns the text for display.
        find_code: takes the same arguments; returns the code of the error.
        add_remedy: takes the text of an error, further operators that it concerns, and the error
            itself or None; returns the text, with a remedy if one is known.
        describe_run: takes the plan, the `report.events.Event`s of a run that did something, the
            packages whose methods have rows or None for all, and the columns of the terminal or
            None; yields lines to print at the end of the run.
        record_run: takes the workspace, the `report.events.Event`s of a run that did something, and
            a record that `store.usage.is_caches` accepts; writes files in `build/`, or into the
            store. Raises OSError.
        find_schedule: takes the content of `timeline.json` or None; returns what limited the speed
            of the run, as JSON and in sentences, or None.

        Export

        perform_export: like `perform`, for `export`; its code is only in the keys of exports.
        public: modules whose names `pte_pipeline` re-exports for exporters and passes.
        fetch_sources: takes the workspace, the `plan.kinds.export.ExportInputs` of an exporter that
            is about to run, and `run.stages.Stages`; fetches what the exporter reads from
            elsewhere, in a process of its own. Raises SourceError.
        watch_exporter: a class like `run.export.declared_reads.DeclaredReads`, with one object
            while an exporter runs; the key of the export contains what it finds.
        more_examples: takes the program of a method whose exporter gives no examples; returns
            further examples besides the arguments of its export, each as positional arguments and
            keywords.
        record_references: takes the references of an exporter, its programs and examples by method,
            torch's default dtype and device while it ran, the workspace's folder, and None or, for
            a process that can't fork, a `features.exporters.announced_deaths.Announcements`;
            returns a recording of each reference by method, as bytes for the store.
        explain_divergence: takes an exported program, its eager reference, the inputs on which they
            differ, and the workspace's folder; returns where and why the program diverges from the
            reference, or "".

        Compile

        instead_of_compile: makes the result of a compile action in another way; takes the action,
            the workspace, `run.stages.Stages`, and whether this process is the building process
            rather than a worker; returns whether it did. Imports no torch.
        expects_refit: takes an export action and the workspace; returns whether
            `instead_of_compile` will probably make the results that follow it: their workers then
            needn't import torch ahead. Imports no torch.
        import_executorch: imports torch and ExecuTorch, which a worker needs next, in less time;
            takes a function that imports torch and sets its threads. It must not change a byte, and
            `fast_lowering` switches it off.
        around_lowering: returns a context manager within which a worker quantizes or compiles;
            takes whether it may patch torch and ExecuTorch, which user code would see, and the
            action's kind. It must not change a byte, and the setting `fast_lowering` switches it
            off.
        load_passes: takes the `config.edge.PassSpec`s of a config, at least one, and the
            workspace's folder; returns the passes over graphs, in order. Passes and memory planning
            algorithms are called like functions. Raises PipelineError.
        load_libraries: takes the names of operator libraries, at least one, and the workspace's
            folder; loads them into this process. Raises PipelineError.
        watch_passes: takes a compile action with passes or operator libraries, and the workspace;
            returns an object like `features.tracing.pass_reads.PassReads`, whose `check` decides
            whether the result may be kept.
        find_changed_specs: takes an exported program whose operators mutate their arguments;
            returns the `InputSpec`s of the buffers, parameters and inputs that it changes, in
            order, or None if only functionalizing it can tell.
        select_modules: takes lists of module names; returns a
            `features.module_selection.selection.ModuleSelection` of the nodes that are inside one
            module of each list.
        explain_lowering: takes programs by method; returns a context manager within which they are
            lowered, and which raises PipelineError in place of errors that it can explain.
        follow_partition: takes a `compile.module_filter.FilteredPartitioner` and an edge program;
            returns a context manager within which the program is partitioned, and which yields a
            function to call with the tagged program.
        find_preprocessed: takes a `compile.preprocess.cached_backend.CachedBackend`, partitions
            with their compile specs, and a function that makes the partitions' part of a key;
            returns the place of their results in the store, a `ResultsPlace` of that module, or
            None.
        check_shared_state: takes the lowered programs, by method, of methods whose mutable buffers
            share memory; raises PipelineError if a delegate keeps such a buffer.
        measure_delegation: takes a lowered program; returns fields that only some
            `store.compiled.DELEGATION`s have, such as `boundary`.
        explain_emission: like `explain_lowering`, for emitting edge programs; takes the edge
            programs and ExecuTorch's config.
        record_emission: returns a context manager within which programs are emitted, and which
            yields an object like `features.instructions.emit_trace.Emission`; takes no arguments.
        warn_of_program: takes the program of a method that is lowered, and the mapping from places
            in a quantized program to places in its source, or None; returns
            `store.compiled.LoweringWarning`s.
        warn_of_quantization: takes the facts of a quantized method and its delegation, which is
            None if it has no partitioners; returns a warning, or "".
        warn_of_emitted: takes the execution plan of a method that was just emitted, its
            `store.compiled.Instructions`, the program that was lowered, and the mapping from places
            in a quantized program to places in its source, or None; returns warnings, in the form
            of `store.compiled.LOWERING_WARNING`.
        find_lost_results: takes such an execution plan, the places of its instructions, and the
            program; returns the results of `torch.cond` that the plan overwrites too early, like
            `features.lost_results.warnings.find_placed_losses`.
        compile_facts: returns a `run.build.listening.CompileListener`; the result of a compile
            action keeps the listener's facts about methods. They must be the same in each
            compilation.
        listen_to_compile: takes a compile action and the workspace; returns a
            `run.build.listening.CompileListener`, or None.
        after_emit: takes ExecuTorch's program manager of a unit that was just emitted, its
            `plan.kinds.compile.CompileInputs`, its programs by method, and the store, into which it
            puts its blobs; returns the blobs by name, which the result of the compile action keeps,
            as JSON.

        Link

        check_compiled: takes the compiled methods of a package by name, as
            `store.compiled.COMPILED_METHOD`s, and their resolved configs; yields
            `store.errors.Problem`s that keep the package from being linked.
        share_weights: takes a link action, the store, and whether files may be laid out, which
            needs torch; returns the `compile.sharing.Shared` of the package, or None if files would
            have to be laid out but may not be. Raises MissingBlobError.
        instead_of_link: makes the files of a link action in another way; takes the action, the
            workspace, `run.stages.Stages`, and the function to call with the result and its files;
            returns whether it did. Imports no torch.
        listen_to_link: learns from a link; takes the action, the results of its compile actions by
            unit, the `compile.sharing.Shared` of the package, the pieces of the package's own files
            by stem, and the store.
        after_link: takes a `run.build.link.LinkedPackage`; puts further files of the package into
            the store, and returns their digests by name.
        link_files: the names of the files from `after_link` that every package has.
        computed_constants: takes the program of a delegate; yields the name and the value of each
            tensor that its backend computes from constants, and stores.
        find_kernel_library: takes the name of an operator, such as `aten::add.out`; returns the
            name of the ExecuTorch kernel library that has it, or None.
        kernel_namespaces: returns the namespaces of operators whose names are all known.
        follow_install: takes the workspace and a package, before another build of it is installed;
            returns a function to call afterwards, which returns facts for the package's state.

        Measure

        measuring: a class like `run.prove.measuring.Measuring`, with one object while a package is
            measured.
        devices: by name, functions that make a device, a `devices.interface.Device`.
        load_delegates: loads further delegates into the ExecuTorch runtime of this process, whose
            bindings were just imported. Raises PipelineError.
        explain_missing_delegate: takes the id of a backend, and a word for its delegate; returns a
            message if the runtime here lacks the delegate, or "".
        find_delegate_facts: takes the id of a backend; returns facts about the library that brings
            its delegate into the runtime here, as for the `facts` of `backends.entry.Execution`.
        read_signature: takes the `signature` of a method in a manifest; returns a
            `features.loading.method_spec.MethodSpec`, with which other features call the method.
            Raises PipelineError.
        run_cases: takes a `validate.method.MethodValidator` and kinds of inputs; calls the method
            on `program.inputs.InputSet`s of these kinds, and returns True.
        call_references: runs the references of an exporter in a process of its own; takes an export
            action, the workspace's folder, the most seconds of a call, and a function; calls this
            function with a `features.exporters.reference_calls.ReferenceCalls`, and returns its
            result.
        keep_state: takes references; returns a function that restores the state of everything they
            reach, and raises SourceError if it can't.
        round_sources: takes programs by method; returns by method a `program.eager.Source` that
            rounds every value again, from whose runs limits are derived. They share state.
        call_together: takes a sequence of methods that share state, their
            `validate.method.MethodValidator`s by name, and the package's
            `devices.interface.PackageFiles`; calls them one after another, and returns True.
        check_payloads: takes a package's `devices.interface.PackageFiles` and the name of a method
            that this machine can't run; yields what is wrong with the payloads of its delegates.
        widen_integers: takes a program and the list of its arguments' values in the examples; adds
            values to it that the program accepts as well, since generated integers stay within
            their range.
        judge_movement: a class like `features.unjudged.judge.MovementJudge`, with one object for
            the program that a method is compared with, which it takes, and one for the float
            program of a quantized method, which takes None; says whether a call would show that a
            further output moves, takes the outputs of the calls, and returns the `movement` of
            `report.method_records.METHOD_OUTLINE`.
        judge_random: takes the names of outputs, the results of repeated calls of a source on one
            input set, and those of a package or a reference; returns a name and a fault for each
            output with another distribution.
        judge_quantization: a class like `features.quantization_loss.calls.FloatComparison`, with
            one object for a method that is quantized during the build, or that reads state of such
            a method; takes the `validate.call_judge.CallJudge` of the method, its
            `config.validation.Limits`, how its program with observers diverges from the float one,
            and its quantized program or, for a float method, its program.
        judge_narrowed: a class like `features.ranges.narrowed.NarrowedSizes`; takes the
            `validate.interface.NarrowedInput`s of a method.
        explain_conditioning: returns how ill-conditioned a program is on an input set, and where
            that begins, or "" if it is well-conditioned.
        describe_unwritten: takes a `program.eager.Source`, an input set, how its runs on this input
            set differ, in words or "", and the workspace's folder or None; returns a message if the
            source reads uninitialized memory, or if rare random draws change its outputs, or "".
            Raises whatever an operator raises.
        locate_on_device: takes a `run.prove.measuring.Measurement`, calls that a device gets wrong,
            an object like `features.native.device_failure.DeviceFailure`, and a
            `validate.budget.Budget`; returns `features.locating.records.CulpritRecord`s, starting
            with the first culprit, and lines on what could not be determined.
        find_quotes: takes the record of a measured package, its
            `plan.kinds.validate.ValidateInputs` and the workspace; returns JSON from which its
            source lines can be quoted again.
        quote_anew: takes such a record, that JSON, and the current inputs, whose lines moved;
            returns the record with the lines as they are now, or None if they can't be determined.
            Raises SourceError.
        judge: takes a validate action and the workspace before the package is measured; returns a
            function of the package's manifest and the measurements, which returns a
            `run.prove.judgement.Judgement`.
        run_elsewhere: takes the workspace, the name of a toolchain and a package; loads and runs
            the package on that toolchain's runtime, and returns by method what the runtime refuses.
        ask_device: takes the workspace, the name of a device, and the `.pte` and `.ptd` files of a
            package; returns by method what the device's runtime lacks for it, as sentences. Raises
            PipelineError if there is no such device, or it doesn't answer.

        Report

        report_fields: by the field of `report.json` that it fills, such as `gates`, or
            `methods.latency`, the outline of the field.
        sections: by rank, functions that take a package's report and return a
            `report.elements.ReportSection` of it; the core's sections have the ranks 0, 20, 30, ...
        overview_sections: by rank, functions that take `report.packages.Entry`s and return a
            section of the page over all packages.
        find_headline: takes the records of methods in a report; returns the worst verdict on them;
            for the method with this verdict that comes nearest to its limit, the deciding figure
            and the limit, as text, each "" if there is none; and the ratio of the error to the
            limit.
        highlights: takes a package's report; returns a `report.elements.DataTable` that is shown
            expanded at the top of a pull request's comment.
        draw_chart: takes a chart's kind and data; returns a `report.elements.Drawing`, or None.
        package_pages: renders pages of a package by file name; takes its report, contents of files
            that the report quotes, and what is delegated less than before, like
            `report.render.render`.
        page_files: the names of a package's pages.
        write_overview: takes the workspace and packages; writes the pages over all packages, which
            `overview_pages` renders, and returns their paths. Raises OSError.
        overview_pages: renders the pages over all packages; takes their `report.packages.Entry`s,
            and the timeline and provenance of `report.render.render_all`.
        report_formats: by the name of a file next to each package's report and in `build/`,
            functions that return its bytes; each takes reports, and the errors of packages without
            one.
        find_histories: takes the workspace and packages; returns the figures of each package at
            earlier commits, the oldest first, by package, in the form of
            `report.packages.Entry.history`.
        find_build_facts: takes the workspace and packages; returns where and when they were built,
            as strings by the name of the fact.
        read_build: takes the path of a manifest; returns the figures of the build, as JSON of
            `features.gates.baseline_fields`, under `figures`, and its manifest, under `manifest`;
            None if it can't be read.
        compare_builds: takes a package's name, two builds of it, as returned by `read_build`, and
            the name of the second; returns their comparison, whose `markdown()` yields lines.

        Store

        outlines: by the kind of a stored result (`store.results.OUTLINES`), or the name of a file
            next to a package, its outline.
        earlier_keys: takes a store, a kind of action, and a key or None; yields the digests and
            keys of results of that kind, the most recently used first; with a key, only of results
            that are comparable to it.
        evict: takes a `store.store.Store` that a run has changed, and the most bytes that it may
            hold; removes the least recently used results. Raises PipelineError, OSError.
        remote_tier: takes a `store.settings_reader.SettingsReader`, if one of its settings is set;
            returns the `store.remote_tier.RemoteTierSettings` of the store's remote tier, or None.
        read_key_paths: takes a `store.settings_reader.SettingsReader`; returns the path of the
            workspace's signing key or None, and the paths of the keys that it trusts, for other
            features. Raises PipelineError.
        load_keys: takes these paths; returns a `features.signing.keys.Keys`, which signs and checks
            signatures. Raises PipelineError if a key can't be used.
        remote_files: takes an fsspec address and a workspace's folder, whose settings it follows;
            returns a `features.remote.files.RemoteFiles`, whose `error` is the exception that its
            methods raise. Raises PipelineError.
        prefetch_exports: takes a plan whose store has a remote tier, and packages; fetches the
            records by which their exports are known, many at a time.
        prefetch_packages: takes such a plan, packages, whether they are validated, and whether the
            methods of linked packages are looked up too; fetches the entries of all actions that a
            build of them would look up, and returns the blobs that it would take from the store.

        Set by `find_features`

        distribution: the distribution that provides it by an entry point, or "" for a folder of
            this package.
    """

    name: str
    summary: str

    # Command line
    verbs: tuple[Command, ...] = ()
    options: Mapping[str, str] = _moment("", _NONE)
    option_help: Mapping[str, str] = _moment("", _NONE)
    rewrite_words: str = _moment("")
    split_command: str = _moment("")
    before_command: str = _moment("")
    help_pages: str = _moment("")
    suggest_page: str = _moment("")
    reporters: Mapping[str, str] = _moment("", _NONE)

    # Config and plan
    settings: Mapping[str, Setting] = _moment("", _NONE)
    config: Mapping[str, str] = _moment("plan", _NONE)
    expand_matrix: str = _moment("plan")
    explain_key: str = _moment("plan")
    explain_syntax: str = _moment("plan")
    edit_config: str = _moment("")
    parse_baseline: str = _moment("plan")
    check_files: str = _moment("")
    schemas: Mapping[str, str] = _moment("", _NONE)
    entries: str = _moment("plan build")
    backends: str = _moment("plan build")
    unknown_options: str = _moment("plan")
    describe_outdated: str = _moment("")
    summarize: str = _moment("plan")
    planning: str = _moment("plan")
    remarks: str = _moment("")
    kinds: Mapping[str, str] = _moment("plan", _NONE)
    user_code: Mapping[str, str] = _moment("plan build", _NONE)
    elsewhere: str = _moment("")
    describe_key: str = _moment("")
    explain_compile: str = _moment("")

    # Run
    executors: Mapping[str, str] = _moment("", _NONE)
    other_tasks: str = _moment("")
    pending_tasks: str = _moment("")
    expect_costs: str = _moment("")
    start_process: str = _moment("export build measure")
    perform: Mapping[str, str] = _moment("build", _NONE)
    live_view: str = _moment("")
    explain_error: str = _moment("")
    show_error: str = _moment("")
    find_code: str = _moment("report")  # it is in junit.xml
    add_remedy: str = _moment("build")
    describe_run: str = _moment("")
    record_run: str = _moment("")
    find_schedule: str = _moment("report")

    # Export
    perform_export: Mapping[str, str] = _moment("export", _NONE)
    public: tuple[str, ...] = _moment("export", ())
    fetch_sources: str = _moment("export")
    watch_exporter: str = _moment("export")
    more_examples: str = _moment("export")
    record_references: str = _moment("export")
    explain_divergence: str = _moment("export")

    # Compile
    instead_of_compile: str = _moment("build")
    expects_refit: str = _moment("")
    import_executorch: str = _moment("build")
    around_lowering: str = _moment("build")
    load_passes: str = _moment("build")
    load_libraries: str = _moment("build")
    watch_passes: str = _moment("build")
    find_changed_specs: str = _moment("build")
    select_modules: str = _moment("build")
    explain_lowering: str = _moment("build")
    follow_partition: str = _moment("build")
    find_preprocessed: str = _moment("build")
    check_shared_state: str = _moment("build")
    measure_delegation: str = _moment("build")
    explain_emission: str = _moment("build")
    record_emission: str = _moment("build")
    warn_of_program: str = _moment("build")
    warn_of_quantization: str = _moment("build")
    warn_of_emitted: str = _moment("build")
    find_lost_results: str = _moment("measure")
    compile_facts: str = _moment("build")
    listen_to_compile: str = _moment("build")
    after_emit: str = _moment("build")

    # Link
    check_compiled: str = _moment("build")
    share_weights: str = _moment("build")
    instead_of_link: str = _moment("build")
    listen_to_link: str = _moment("build")
    after_link: str = _moment("build")
    link_files: tuple[str, ...] = ()
    computed_constants: str = _moment("build")
    find_kernel_library: str = _moment("plan build report")
    kernel_namespaces: str = _moment("plan build report")
    follow_install: str = _moment("")

    # Measure
    measuring: str = _moment("measure")
    devices: Mapping[str, str] = _moment("measure", _NONE)
    load_delegates: str = _moment("export measure")
    explain_missing_delegate: str = _moment("measure")
    find_delegate_facts: str = _moment("measure")
    read_signature: str = _moment("measure")
    run_cases: str = _moment("measure")
    call_references: str = _moment("measure")
    keep_state: str = _moment("measure")
    round_sources: str = _moment("measure")
    call_together: str = _moment("measure")
    check_payloads: str = _moment("measure")
    widen_integers: str = _moment("export build measure")
    judge_movement: str = _moment("measure")
    judge_random: str = _moment("measure")
    judge_quantization: str = _moment("measure")
    judge_narrowed: str = _moment("measure")
    explain_conditioning: str = _moment("measure")
    describe_unwritten: str = _moment("measure")
    locate_on_device: str = _moment("measure")
    find_quotes: str = _moment("measure")
    quote_anew: str = _moment("measure")
    judge: str = _moment("report")
    run_elsewhere: str = _moment("")
    ask_device: str = _moment("")

    # Report
    report_fields: Mapping[str, str] = _moment("", _NONE)
    sections: Mapping[int, str] = _moment("report", _NONE)
    overview_sections: Mapping[int, str] = _moment("report", _NONE)
    find_headline: str = _moment("report")
    highlights: str = _moment("report")
    draw_chart: str = _moment("report")
    package_pages: str = _moment("report")
    page_files: tuple[str, ...] = ()
    write_overview: str = _moment("")
    overview_pages: str = _moment("report")
    report_formats: Mapping[str, str] = _moment("report", _NONE)
    find_histories: str = _moment("")
    find_build_facts: str = _moment("")
    read_build: str = _moment("")
    compare_builds: str = _moment("")

    # Store
    outlines: Mapping[str, str] = _moment("", _NONE)
    earlier_keys: str = _moment("")
    evict: str = _moment("")
    remote_tier: str = _moment("")  # everything it transfers is checked by digest
    read_key_paths: str = _moment("")
    load_keys: str = _moment("")
    remote_files: str = _moment("")
    prefetch_exports: str = _moment("")
    prefetch_packages: str = _moment("")

    # Set by `find_features`
    distribution: str = ""


@cache
def find_features() -> tuple[Feature, ...]:
    """Return this package's features, then those of other distributions, each sorted by name."""
    # Python would look for three kinds of extension modules first, which takes 1 ms of a no-op run.
    loader = SourceFileLoader, SOURCE_SUFFIXES
    sys.path_importer_cache[str(FOLDER)] = FileFinder(str(FOLDER), loader)
    features = [
        import_module(f"pipeline.features.{name}").FEATURE
        for name in sorted(os.listdir(FOLDER))
        if os.path.isfile(f"{FOLDER}/{name}/__init__.py")
    ]
    points = sorted(installed_entry_points(GROUP), key=lambda point: point.name)
    for point in points:
        distribution = {"distribution": point.dist.name if point.dist else ""}
        features.append(Feature(**vars(point.load()) | distribution))
    return tuple(features)


def has_feature(name: str) -> bool:
    """Return whether this installation has a feature."""
    return any(feature.name == name for feature in find_features())


@cache
def installed_entry_points(group: str) -> EntryPoints:
    """Return the entry points in a group that the installed distributions declare."""
    # For 200 distributions, parsing entry points takes 9 ms of a no-op run, and reading them 2 ms.
    for distribution in distributions():
        if group in (distribution.read_text("entry_points.txt") or ""):
            return entry_points(group=group)
    return EntryPoints()


def call_all(moment: str, *arguments: object) -> Iterator[Any]:
    """Call the function of each feature that takes part in a moment, and yield the results."""
    # One by one, so that `next` calls only as many features as it needs.
    for feature in find_features():
        if reference := getattr(feature, moment):
            yield load(reference)(*arguments)


def earlier_keys(*arguments: object) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Yield the digests and keys of earlier results, the most recently used first.

    Yields nothing without the feature that finds them. The arguments are those of the moment.
    """
    for results in call_all("earlier_keys", *arguments):
        yield from results


def show_error(text: str, kind: str = "") -> str:
    """Return the text of an error for display. Messages are compared and stored without it.

    Args:
        kind: the kind of the action that failed, such as `compile`; "" for a command line;
            `warning` for a warning.
    """
    return next(call_all("show_error", text, kind), text)


def find_code(text: str, kind: str) -> str:
    """Return the code of an error, such as `PTE111`.

    Returns "" if there is no error, or no feature that knows codes. The arguments are those of
    `show_error`.
    """
    return next(call_all("find_code", text, kind), "") if text else ""


@contextmanager
def within_all(moment: str, *arguments: object) -> Iterator[None]:
    """Run a block within the context managers of all features that take part in a moment."""
    with ExitStack() as stack:
        for context in call_all(moment, *arguments):
            stack.enter_context(context)
        yield


def find_functions(moment: str) -> dict[str, str]:
    """Return the functions of a moment such as `executors`, by their names in the features."""
    references: dict[str, str] = {}
    for feature in find_features():
        references.update(getattr(feature, moment))
    return references


def find_link_files() -> list[str]:
    """Return the names of the files that features add to every package."""
    return [name for feature in find_features() for name in feature.link_files]


def find_page_files() -> list[str]:
    """Return the names of each package's pages, and of its reports in other formats."""
    pages = [name for feature in find_features() for name in feature.page_files]
    return [*pages, *find_functions("report_formats")]


def find_modules(feature: Feature, keys: str) -> list[str]:
    """Return the modules that a feature names for the moments whose code is part of these keys.

    With "", returns the modules of its verbs, which are part of no key.
    """
    if not keys:
        return [verb.run.partition(":")[0] for verb in feature.verbs]
    return _find_modules(feature).get(keys, [])


@cache  # a no-op run calls this 690 times to make its keys
def _find_modules(feature: Feature) -> dict[str, list[str]]:
    """Return the modules that a feature names for moments, by the keys that contain their code."""
    modules: dict[str, list[str]] = {}
    for moment, value in vars(feature).items():
        for keys in _KEYS_OF_MOMENTS.get(moment, ()):
            names = [reference.partition(":")[0] for reference in _references(value)]
            modules.setdefault(keys, []).extend(names)
    return modules


def _references(value: Any) -> list[str]:
    """Return the references of a moment, which has one or several, as a list."""
    if isinstance(value, str):
        return [value] if value else []
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value)


def load(reference: str) -> Callable[..., Any]:
    """Return the function that `"module:function"` names."""
    module, _, name = reference.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function
