package egress_test

import data.egress

sent(host, method, path, size) := {
	"destination": {"host": host, "port": 443},
	"http": {"method": method, "path": path, "body_size": size},
}

asked(host, path) := {
	"destination": {"host": host, "port": 443},
	"http": {"method": "GET", "path": path},
}

allowed_by := {r.rule | some r in egress.allow}

denied_by := {r.rule | some r in egress.deny}

store := "s3.eu-central-1.amazonaws.com"

test_models_and_datasets_are_read if {
	"hub-read" in allowed_by with input as asked("huggingface.co", "/acme/model/resolve/main/config.json")
	"hub-read" in allowed_by with input as asked("cdn-lfs.hf.co", "/x")
	"dataset-read" in allowed_by with input as asked("archive.ics.uci.edu", "/static/public/53/iris.zip")
	count(allowed_by) == 0 with input as asked("evilhuggingface.co", "/")
	count(allowed_by) == 0 with input as sent("huggingface.co", "POST", "/api/repos/create", 10)
}

test_buckets_are_told_apart_by_path if {
	allowed_by == {"bucket-read"} with input as asked(store, "/acme-datasets/train/0.parquet")
	count(allowed_by) == 0 with input as asked(store, "/acme-datasets-2/x")
	count(allowed_by) == 0 with input as asked(store, "/somebody-else/acme-datasets/x")
	count(allowed_by) == 0 with input as asked(store, "/acme-datasets/../somebody-else/x")
	count(allowed_by) == 0 with input as asked("acme-datasets.s3.amazonaws.com", "/x")
}

test_results_are_written if {
	allowed_by == {"bucket-write"} with input as sent(store, "PUT", "/acme-results/run-7/model.bin", 1048576)
	count(denied_by) == 0 with input as sent(store, "PUT", "/acme-results/run-7/model.bin", 1048576)
	denied_by == {"bucket-size"} with input as sent(store, "PUT", "/acme-results/run-7/model.bin", 67108865)
	count(allowed_by) == 0 with input as sent(store, "PUT", "/acme-datasets/x", 10)
}

test_uploads_are_small if {
	count(denied_by) == 0 with input as asked("pypi.org", "/simple/numpy/")
	count(denied_by) == 0 with input as sent("pypi.org", "GET", "/simple/numpy/", 0)
	count(denied_by) == 0 with input as sent("pypi.org", "POST", "/pypi", 262144)
	denied_by == {"upload-size"} with input as sent("pypi.org", "POST", "/pypi", 262145)
	denied_by == {"upload-size"} with input as sent("pypi.org", "GET", "/simple/numpy/", 262145)
}

test_a_size_that_nobody_announces_is_large if {
	unknown := {"destination": {"host": "pypi.org", "port": 443}, "http": {"method": "POST", "path": "/pypi"}}
	denied_by == {"upload-size"} with input as unknown
}
