# What a notebook may reach beside the package mirrors of its file.
package egress

reads if input.http.method in {"GET", "HEAD"}

allow contains {"rule": "hub-read"} if {
	host.any(input.destination.host, data.hubs)
	reads
}

allow contains {"rule": "dataset-read"} if {
	host.any(input.destination.host, data.datasets)
	reads
}

# The object store is everybody's: what is allowed of it is a bucket, by its path.
allow contains {"rule": "bucket-read"} if {
	host.matches(input.destination.host, data.store.host)
	reads
	some bucket in data.store.read
	path.matches(input.http.path, sprintf("/%s/**", [bucket]))
}

allow contains {"rule": "bucket-write"} if {
	own_bucket
	input.http.method == "PUT"
}

own_bucket if {
	host.matches(input.destination.host, data.store.host)
	some bucket in data.store.write
	path.matches(input.http.path, sprintf("/%s/**", [bucket]))
}

# A body whose size nobody announces counts as a large one, unless nothing is sent.
deny contains {"rule": "upload-size", "reason": "uploads go to the team's own buckets"} if {
	not own_bucket
	not fits(data.limits.upload_bytes)
}

deny contains {"rule": "bucket-size", "reason": "the object is larger than a bucket takes"} if {
	own_bucket
	not fits(data.limits.bucket_bytes)
}

fits(most) if input.http.body_size <= most

fits(_) if {
	reads
	not input.http.body_size
}
