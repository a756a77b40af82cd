"""Files of a config that a package lacks, each with the reason."""

from pipeline.features.summary.unwritten import find_unwritten


def test_a_file_that_nothing_went_to_is_reported_with_the_reason():
    def tensor(name, where, file="m.pte"):
        return {"name": name, "where": where, "file": file}

    def lines(option, *tensors):
        return list(find_unwritten({option: {"w": ["a*"]}}, ["m.pte"], tensors))

    weights, files = "external_weights", "external_files"
    named = tensor("a.weight", "named_data")
    for option, tensors, reason in (
        (weights, (), "the package has no constants; leave out the option"),
        (
            weights,
            (tensor("a.cache", "mutable"),),
            "the package has no constants; leave out the option",
        ),
        (weights, (tensor("b", "constants"),), "match no constant that is still in the package"),
        (weights, (tensor("a", "delegate"),), "in payloads of backends that take no tags"),
        (weights, (tensor("a", "named_data", "o.ptd"),), "other files take all"),
        (weights, (tensor("a", "constants"),), "literals in the model's code"),
        (files, (named,), "its constants went to delegates; `external_weights` moves these too"),
        (files, (), "the package has no constants; leave out the option"),
    ):
        (line,) = lines(option, *tensors)
        assert line.startswith(f"emit.{option}: there is no w.ptd: ") and reason in line
    assert list(find_unwritten({weights: {"w": ["*"]}}, ["m.pte", "w.ptd"], [named])) == []
    (line,) = find_unwritten({weights: {"w": ["*"]}}, ["m.pte"])
    assert line == "emit.external_weights: there is no w.ptd"
