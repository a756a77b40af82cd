"""Call sites: typed functions for the methods of a package, in the language of an app.

methods     the methods of a manifest, the same for every language
names       identifiers of a language
cpp, kotlin, swift, typescript   the languages
"""

from __future__ import annotations

from pipeline.moments import Command, Feature

LANGUAGES = ("cpp", "kotlin", "swift", "typescript")
CALL_SITES = Command(
    "call-sites",
    "write typed functions for the methods of a package, for an app to call",
    "package",
    {
        "language LANGUAGE": f"{', '.join(LANGUAGES)}",
        "out FILE": "the file to write; by default, the code is printed",
        "namespace NAME": "the C++ namespace or Kotlin package; by default the package's name",
    },
    "Each method becomes a function that has named inputs and outputs, and checks the dtypes and "
    "sizes of its inputs. The package must be lowered as currently configured.",
    (
        ("doit call-sites vision --language cpp --out vision.h", "write a C++ header"),
        ("doit call-sites vision --language kotlin", "print Kotlin for Android"),
    ),
    run="pipeline.features.call_sites.verb:run",
)
FEATURE = Feature(
    "call_sites",
    "write typed functions for apps that call a package, in C++, Kotlin, Swift or TypeScript",
    verbs=(CALL_SITES,),
)
