"""Writes all parts of docs/ that are generated from code."""

from tools.reference.errors import DATA, make_error_data
from tools.reference.json_output import make_schema_files
from tools.reference.key_data import FILE, make_key_data
from tools.reference.pages import PARTS, REFERENCE, with_parts

for page in sorted({page for page, _ in PARTS}):
    page.write_text(with_parts(page, page.read_text(encoding="utf-8")), encoding="utf-8")
FILE.write_text(make_key_data(), encoding="utf-8")
DATA.write_text(make_error_data(), encoding="utf-8")
for name, text in make_schema_files().items():
    (REFERENCE / name).write_text(text, encoding="utf-8")
