"""The shell scripts that ask `pte` for the words that complete a command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.store.errors import PipelineError, did_you_mean

_BASH = """\
_pte_complete() {
    local word
    COMPREPLY=()
    while IFS=$'\\t' read -r word _; do
        COMPREPLY+=("$word")
    done < <(pte _complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _pte_complete pte
"""
_ZSH = """\
_pte_complete() {
    local line
    local -a described
    for line in "${(@f)$(pte _complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        described+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}")
    done
    _describe -V pte described || _files
}
compdef _pte_complete pte
"""
_FISH = """\
complete -c pte -f -a '(pte _complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def run(words: Sequence[str], folder: Path) -> int:
    """Print the completion script of a shell.

    Raises:
        PipelineError: the words don't name one supported shell.
    """
    shell = " ".join(words)
    if shell not in SCRIPTS:
        hint = did_you_mean(shell, SCRIPTS)
        raise PipelineError(f"completion: no script for '{shell}'; {hint}")
    print(SCRIPTS[shell], end="")
    return 0
