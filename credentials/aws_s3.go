package credentials

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
)

const serviceS3 = "s3"

// awsSuffixes end the names of AWS's endpoints.
var awsSuffixes = []string{".amazonaws.com", ".amazonaws.com.cn", ".api.aws"}

// An s3Host is what the name of a host says of S3.
type s3Host struct {
	isS3   bool
	known  bool   // it is an endpoint on which requests name buckets as egressd reads them
	bucket string // in front of the endpoint; "" where the path names it
}

// s3Endpoint are the endpoints of buckets. Others of S3 name resources in other ways: access points, S3 Control, S3 Express,
// Object Lambda, Outposts.
var s3Endpoint = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:(.+)\.)?s3(?:-fips)?(?:\.dualstack)?(?:\.[a-z]{2}(?:-[a-z]+)+-[0-9]+)?$|^(.+)\.s3-accelerate(?:\.dualstack)?$`)
})

func (c *Credential) s3Host(host string) s3Host {
	if !awsHost(host) { // of an own installation, whose buckets stand in the path
		own := slices.Contains(c.AWS.Services, serviceS3)
		return s3Host{isS3: own, known: own}
	}
	rest := host
	for _, suffix := range awsSuffixes {
		rest = strings.TrimSuffix(rest, suffix)
	}
	parts := s3Endpoint().FindStringSubmatch(rest)
	if parts == nil {
		looks := slices.ContainsFunc(strings.Split(rest, "."), func(label string) bool { return strings.HasPrefix(label, "s3") })
		return s3Host{isS3: looks}
	}
	return s3Host{isS3: true, known: true, bucket: parts[1] + parts[2]}
}

func awsHost(host string) bool {
	return slices.ContainsFunc(awsSuffixes, func(suffix string) bool { return strings.HasSuffix(host, suffix) })
}

// split returns the bucket and the key of a path. ok is false if the bucket is written in an unusual way.
func (h s3Host) split(path string) (bucket, key string, ok bool) {
	bucket, key = h.bucket, strings.TrimPrefix(path, "/")
	if bucket == "" {
		bucket, key, _ = strings.Cut(key, "/")
	}
	return bucket, key, strings.Trim(bucket, lowerDigits+".-") == ""
}

// service reports whether a request is for no bucket.
func (h s3Host) service(path string) bool { return h.bucket == "" && path == "/" }

// s3Operations are those that touch nothing but objects and what a bucket says of itself, by method, level, and the parameter
// that chooses the operation. What is not listed is refused: such operations give a bucket or an object to others, send objects
// elsewhere, or ignore the condition about the owner (CreateBucket).
var s3Operations = map[string]bool{
	"GET service ": true,

	"GET bucket ": true, "HEAD bucket ": true, "POST bucket delete": true,
	"GET bucket uploads": true, "GET bucket versions": true, "GET bucket location": true, "GET bucket versioning": true, "GET bucket tagging": true,
	"GET bucket encryption": true, "GET bucket lifecycle": true, "GET bucket cors": true, "GET bucket ownershipControls": true, "GET bucket publicAccessBlock": true,
	"GET bucket object-lock": true, "GET bucket accelerate": true, "GET bucket requestPayment": true,

	"GET object ": true, "HEAD object ": true, "GET object uploadId": true, "GET object tagging": true, "GET object attributes": true, "GET object retention": true, "GET object legal-hold": true,
	"PUT object ": true, "PUT object uploadId": true, "PUT object tagging": true,
	"POST object uploads": true, "POST object uploadId": true, "POST object select": true,
	"DELETE object ": true, "DELETE object uploadId": true, "DELETE object tagging": true,
}

// s3Shaping are parameters that choose no operation.
func s3Shaping(name string) bool {
	switch name {
	case "versionId", "partNumber", "x-id", "prefix", "delimiter", "marker", "max-keys", "encoding-type", "list-type", "continuation-token", "start-after", "fetch-owner",
		"key-marker", "version-id-marker", "upload-id-marker", "max-uploads", "max-parts", "part-number-marker", "max-buckets", "bucket-region", "select-type",
		"response-content-type", "response-content-language", "response-expires", "response-cache-control", "response-content-disposition", "response-content-encoding":
		return true
	}
	return false
}

// s3Field reports whether S3 may be told a field of its own. "x-amz-acl" is for two harmless values.
func s3Field(name, value string) bool {
	switch name {
	case "x-amz-acl":
		return value == "private" || value == "bucket-owner-full-control"
	case "x-amz-content-sha256", "x-amz-date", "x-amz-security-token", "x-amz-user-agent", "x-amz-trailer", "x-amz-decoded-content-length", "x-amz-te",
		"x-amz-copy-source", "x-amz-metadata-directive", "x-amz-tagging", "x-amz-tagging-directive", "x-amz-storage-class", "x-amz-request-payer",
		"x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner", "x-amz-object-attributes", "x-amz-optional-object-attributes", "x-amz-max-parts",
		"x-amz-part-number-marker", "x-amz-mp-object-size", "x-amz-sdk-checksum-algorithm":
		return true
	}
	for _, prefix := range []string{"x-amz-meta-", "x-amz-checksum-", "x-amz-server-side-encryption", "x-amz-copy-source-", "x-amz-if-match-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// s3Problem says why a request for S3 is not to be signed.
func (c *Credential) s3Problem(r *Request, host s3Host) string {
	bucket, key, plain := host.split(r.Target.Path)
	level := "object"
	switch {
	case !host.known:
		return "egressd cannot tell the bucket at this endpoint of S3; use s3.REGION.amazonaws.com"
	case host.service(r.Target.Path):
		level = "service"
	case !plain || !c.mayUse(bucket):
		return "the request names a bucket that is not in buckets of the credential " + c.Name
	case key == "":
		level = "bucket"
	}
	operation, problem := r.Method+" "+level+" ", ""
	eachParameter(r.Target.Query, func(name, _ string, _ parameter) {
		switch {
		case name == "" || s3Shaping(name):
		case strings.HasSuffix(operation, " "):
			operation += name
		default:
			problem = "the request has two parameters that each choose an operation of S3"
		}
	})
	switch {
	case problem != "":
		return problem
	case !s3Operations[operation]:
		return "egressd does not sign this operation of S3, which is none on objects alone; egressd policy show credentials lists those that it signs"
	}
	for _, f := range r.Fields {
		if name := strings.ToLower(f.Name); strings.HasPrefix(name, "x-amz-") && !s3Field(name, f.Value) {
			return "egressd signs no request for S3 with the field " + name
		}
	}
	if source := r.Fields.Get(fieldSource); source != "" && !c.maySource(source) {
		return "the request copies from a bucket that is not in buckets of the credential " + c.Name
	}
	return ""
}

// mayUse reports whether requests may name a bucket.
func (c *Credential) mayUse(bucket string) bool {
	return bucket != "" && (slices.Contains(c.AWS.Buckets, bucket) || len(c.AWS.Buckets) == 0 && c.AWS.Account != "")
}

// maySource reports whether requests may copy from x-amz-copy-source. The field has the bucket and the key, percent-encoded.
func (c *Credential) maySource(source string) bool {
	text, err := url.PathUnescape(source)
	bucket, key, _ := strings.Cut(strings.TrimPrefix(text, "/"), "/")
	return err == nil && key != "" && strings.Trim(bucket, lowerDigits+".-") == "" && c.mayUse(bucket)
}

func s3OperationsSaid() (all []string) {
	for operation := range s3Operations {
		method, rest, _ := strings.Cut(operation, " ")
		level, parameter, _ := strings.Cut(rest, " ")
		if parameter != "" {
			parameter = "?" + parameter
		}
		all = append(all, strings.TrimSpace(method+" "+level+parameter))
	}
	slices.Sort(all)
	return all
}
