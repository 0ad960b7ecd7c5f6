package credentials

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/testaws"
	"pgregory.net/rapid"
)

var realAWS = testaws.Key{ID: "ASIAREALREALREALREAL", Secret: "REALsecretREALsecretREALsecretREALsecret", Token: "REALtokenREALtoken/+=="}

const awsProfiles = `[default]
aws_access_key_id = AKIADEFAULTDEFAULT
aws_secret_access_key = defaultdefaultdefault

# of the agent
[ agent ]
aws_access_key_id=ASIAREALREALREALREAL
aws_secret_access_key = REALsecretREALsecretREALsecretREALsecret
aws_session_token = REALtokenREALtoken/+==
region = eu-west-1
[empty]
sso_session = x
`

func awsCredential(t *testing.T, limits AWSLimits) *Credential {
	t.Helper()
	path := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(path, []byte(awsProfiles), 0o600); err != nil {
		t.Fatal(err)
	}
	k := KindNamed(AWS)
	c := New(Spec{Name: AWS, Kind: AWS, Places: k.Places, Prefixes: k.Prefixes, Variables: k.Variables, AWS: &limits, From: Source{File: path, Profile: "agent"}}, nil, func(p string) string { return p })
	if err := c.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// An awsAsk is a request that a client of AWS signs.
type awsAsk struct {
	method, host, target string
	fields               []string
	body                 string
	service, region      string
	hash                 string // "" for that of the body
	key                  aws.Credentials
}

// signed returns the request as the SDK writes it.
func (k awsAsk) signed(t testing.TB) *Request {
	u := &url.URL{Scheme: "https", Host: k.host}
	path, query, has := strings.Cut(k.target, "?")
	u.Opaque, u.RawQuery = "//"+k.host+path, query
	r := &http.Request{Method: k.method, URL: u, Host: k.host, Header: http.Header{}}
	for _, f := range fieldsOf(k.fields) {
		r.Header.Add(f.Name, f.Value)
	}
	hash := k.hash
	if sum := sha256.Sum256([]byte(k.body)); hash == "" {
		hash = hex.EncodeToString(sum[:])
	}
	if k.service == "s3" && r.Header.Get(fieldHash) == "" {
		r.Header.Set(fieldHash, hash)
	}
	if err := v4.NewSigner().SignHTTP(t.Context(), k.key, r, hash, k.service, k.region, time.Now()); err != nil {
		t.Fatal(err)
	}
	out := &Request{Sandbox: "ci", Rule: "aws", Host: k.host, Authority: k.host, Method: k.method, Target: http1.Target{Path: path, Query: query, HasQuery: has}}
	for name, values := range r.Header {
		for _, value := range values {
			out.Fields = append(out.Fields, http1.Field{Name: name, Value: value})
		}
	}
	return out
}

// arrives is what a server gets of an answer.
func arrives(r *Request, a *Answer) *http.Request {
	got := &http.Request{Method: r.Method, Host: r.Authority, RequestURI: a.Target.RequestURI(), Header: http.Header{}}
	for _, f := range a.Fields {
		got.Header.Add(f.Name, f.Value)
	}
	return got
}

func placeholderOf(t *testing.T, set *Set, sandbox string) aws.Credentials {
	return aws.Credentials{
		AccessKeyID: variable(t, set, sandbox, "AWS_ACCESS_KEY_ID"), SecretAccessKey: variable(t, set, sandbox, "AWS_SECRET_ACCESS_KEY"), SessionToken: variable(t, set, sandbox, "AWS_SESSION_TOKEN"),
	}
}

const (
	s3Regional = "s3.eu-west-1.amazonaws.com"
	s3Own      = "acme-build.s3.eu-west-1.amazonaws.com"
	stsHost    = "sts.eu-west-1.amazonaws.com"
	dynamoHost = "dynamodb.eu-west-1.amazonaws.com"
	formType   = "Content-Type: application/x-www-form-urlencoded; charset=utf-8"
	jsonType   = "Content-Type: application/x-amz-json-1.0"
)

var wholeLimits = AWSLimits{Regions: []string{"eu-west-1"}, Services: []string{"s3", "sts", "dynamodb", "sqs", "iam", "bedrock", "monitoring"}, Buckets: []string{"acme-build", "acme.logs"}, Account: "123456789012"}

// TestAWSRequestsAreSignedAnew has what tools send, and the cases of INSIDE that concern AWS. A verifier that shares no code with
// the signer checks what passes.
func TestAWSRequestsAreSignedAnew(t *testing.T) {
	set := NewSet(Key{1}, []*Credential{awsCredential(t, wholeLimits)})
	place, other := placeholderOf(t, set, "ci"), placeholderOf(t, set, "web")
	foreign := aws.Credentials{AccessKeyID: "AKIAFOREIGNFOREIGN01", SecretAccessKey: "foreign"}
	if !strings.HasPrefix(place.AccessKeyID, "ASIAEGRESSD") || strings.Contains(fmt.Sprint(place), "REAL") {
		t.Fatalf("the placeholders are %v", place)
	}
	target := func(name string) string { return "X-Amz-Target: DynamoDB_20120810." + name }
	for _, row := range []struct {
		name   string
		ask    awsAsk
		passes bool
	}{
		{"get-caller-identity", awsAsk{"POST", stsHost, "/", []string{formType}, "Action=GetCallerIdentity&Version=2011-06-15", "sts", "eu-west-1", "", place}, true},
		{"by GET", awsAsk{"GET", stsHost, "/?Action=GetCallerIdentity&Version=2011-06-15", nil, "", "sts", "eu-west-1", "", place}, true},
		{"put-item", awsAsk{"POST", dynamoHost, "/", []string{jsonType, target("PutItem")}, `{"TableName":"t"}`, "dynamodb", "eu-west-1", "", place}, true},
		{"send-message to a queue's URL", awsAsk{"POST", "sqs.eu-west-1.amazonaws.com", "/123456789012/q", []string{formType}, "Action=SendMessage&MessageBody=a%20Action%3Db", "sqs", "eu-west-1", "", place}, true},
		{"put-metric-data by RPC", awsAsk{"POST", "monitoring.eu-west-1.amazonaws.com", "/service/GraniteServiceVersion20100801/operation/PutMetricData", []string{"Content-Type: application/cbor"}, "\xa0", "monitoring", "eu-west-1", "", place}, true},
		{"a model with colons", awsAsk{"POST", "bedrock-runtime.eu-west-1.amazonaws.com", "/model/anthropic.claude-3%3A0/invoke", nil, "{}", "bedrock", "eu-west-1", "", place}, true},
		{"get-object, path style", awsAsk{"GET", s3Regional, "/acme-build/a/b%20c%2Bd?versionId=x%3D", nil, "", "s3", "eu-west-1", "", place}, true},
		{"get-object, virtual style", awsAsk{"GET", s3Own, "/a/b", []string{"Range: bytes=0-7"}, "", "s3", "eu-west-1", "", place}, true},
		{"a bucket with a dot", awsAsk{"GET", "acme.logs.s3.eu-west-1.amazonaws.com", "/a", nil, "", "s3", "eu-west-1", "", place}, true},
		{"dual stack", awsAsk{"GET", "s3.dualstack.eu-west-1.amazonaws.com", "/acme-build/a", nil, "", "s3", "eu-west-1", "", place}, true},
		{"put-object, hashed", awsAsk{"PUT", s3Own, "/a", []string{"Content-Type: text/plain", "X-Amz-Meta-A: b   c"}, "text", "s3", "eu-west-1", "", place}, true},
		{"put-object, unsigned", awsAsk{"PUT", s3Own, "/a", []string{"Content-Md5: CY9rzUYh03PK3k6DJie09g=="}, "text", "s3", "eu-west-1", unsigned, place}, true},
		{"s3 cp", awsAsk{"PUT", s3Own, "/a", []string{"X-Amz-Trailer: x-amz-checksum-crc32", "Content-Encoding: aws-chunked", "X-Amz-Decoded-Content-Length: 4", "X-Amz-Sdk-Checksum-Algorithm: CRC32"}, "text", "s3", "eu-west-1", unsignedEnd, place}, true},
		{"multipart", awsAsk{"POST", s3Own, "/a?uploads", nil, "", "s3", "eu-west-1", "", place}, true},
		{"a part", awsAsk{"PUT", s3Own, "/a?partNumber=1&uploadId=x", nil, "text", "s3", "eu-west-1", unsigned, place}, true},
		{"the end of multipart", awsAsk{"POST", s3Own, "/a?uploadId=x", nil, "<x/>", "s3", "eu-west-1", "", place}, true},
		{"list-objects-v2", awsAsk{"GET", s3Own, "/?list-type=2&prefix=a%2F&delimiter=%2F&encoding-type=url", nil, "", "s3", "eu-west-1", "", place}, true},
		{"delete-objects", awsAsk{"POST", s3Own, "/?delete", []string{"Content-Md5: x"}, "<x/>", "s3", "eu-west-1", "", place}, true},
		{"list-buckets", awsAsk{"GET", s3Regional, "/", nil, "", "s3", "eu-west-1", "", place}, true},
		{"copy within", awsAsk{"PUT", s3Own, "/a", []string{"X-Amz-Copy-Source: acme.logs/x%20y"}, "", "s3", "eu-west-1", "", place}, true},
		{"a private ACL", awsAsk{"PUT", s3Own, "/a", []string{"X-Amz-Acl: private"}, "", "s3", "eu-west-1", "", place}, true},
		{"the sandbox's own owner condition is replaced", awsAsk{"PUT", s3Own, "/a", []string{"X-Amz-Expected-Bucket-Owner: 999999999999"}, "", "s3", "eu-west-1", "", place}, true},

		{"case 14: assume-role", awsAsk{"POST", stsHost, "/", []string{formType}, "Action=AssumeRole&RoleArn=x", "sts", "eu-west-1", "", place}, false},
		{"case 14: get-session-token", awsAsk{"POST", stsHost, "/", []string{formType}, "Action=GetSessionToken", "sts", "eu-west-1", "", place}, false},
		{"case 14: by GET", awsAsk{"GET", stsHost, "/?Action=AssumeRole", nil, "", "sts", "eu-west-1", "", place}, false},
		{"case 14: escaped", awsAsk{"POST", stsHost, "/", []string{formType}, "%41ction=Assume%52ole", "sts", "eu-west-1", "", place}, false},
		{"case 14: two actions", awsAsk{"POST", stsHost, "/", []string{formType}, "Action=GetCallerIdentity&Action=AssumeRole", "sts", "eu-west-1", "", place}, false},
		{"case 14: one in the query", awsAsk{"POST", stsHost, "/?Action=GetCallerIdentity", []string{formType}, "Action=AssumeRole", "sts", "eu-west-1", "", place}, false},
		{"case 14: in another case", awsAsk{"POST", stsHost, "/", []string{formType}, "Action=GetCallerIdentity&action=AssumeRole", "sts", "eu-west-1", "", place}, false},
		{"case 14: behind a target", awsAsk{"POST", stsHost, "/", []string{formType, "X-Amz-Target: X.GetCallerIdentity"}, "Action=AssumeRole", "sts", "eu-west-1", "", place}, false},
		{"case 14: as JSON", awsAsk{"POST", stsHost, "/", []string{jsonType, "X-Amz-Target: X.GetCallerIdentity"}, "Action=AssumeRole", "sts", "eu-west-1", "", place}, false},
		{"case 14: without a type", awsAsk{"POST", stsHost, "/", nil, "Action=AssumeRole", "sts", "eu-west-1", "", place}, false},
		{"case 14: create-access-key", awsAsk{"POST", "iam.amazonaws.com", "/", []string{formType}, "Action=CreateAccessKey", "iam", "eu-west-1", "", place}, false},
		{"case 14: in a body that a server may unpack", awsAsk{"POST", stsHost, "/?Action=GetCallerIdentity", []string{formType, "Content-Encoding: gzip"}, "\x1f\x8b", "sts", "eu-west-1", "", place}, false},
		{"a table with a policy for others", awsAsk{"POST", dynamoHost, "/", []string{jsonType, target("CreateTable")}, `{"ResourcePolicy":"{}"}`, "dynamodb", "eu-west-1", "", place}, false},
		{"a policy for others", awsAsk{"POST", dynamoHost, "/", []string{jsonType, target("PutResourcePolicy")}, "{}", "dynamodb", "eu-west-1", "", place}, false},
		{"a target in the query", awsAsk{"POST", dynamoHost, "/?X-Amz-Target=DynamoDB_20120810.PutResourcePolicy", []string{jsonType, target("PutItem")}, "{}", "dynamodb", "eu-west-1", "", place}, false},
		{"an asynchronous model, which writes to a bucket", awsAsk{"POST", "bedrock-runtime.eu-west-1.amazonaws.com", "/async-invoke", nil, "{}", "bedrock", "eu-west-1", "", place}, false},

		{"case 16: a foreign key", awsAsk{"GET", s3Own, "/a", nil, "", "s3", "eu-west-1", "", foreign}, false},
		{"case 16: that of another sandbox", awsAsk{"GET", s3Own, "/a", nil, "", "s3", "eu-west-1", "", other}, false},
		{"case 17: region", awsAsk{"GET", s3Own, "/a", nil, "", "s3", "us-east-1", "", place}, false},
		{"case 17: service", awsAsk{"POST", "ec2.eu-west-1.amazonaws.com", "/", []string{formType}, "Action=DescribeInstances", "ec2", "eu-west-1", "", place}, false},
		{"a service at the host of another", awsAsk{"PUT", "evil.s3.eu-west-1.amazonaws.com", "/a", []string{jsonType, target("PutItem")}, "{}", "dynamodb", "eu-west-1", "", place}, false},
		{"s3 at the host of another", awsAsk{"GET", stsHost, "/acme-build/a", nil, "", "s3", "eu-west-1", "", place}, false},
		{"case 18: another hash", awsAsk{"PUT", s3Own, "/a", nil, "text", "s3", "eu-west-1", emptySHA256, place}, false},
		{"case 19: a foreign bucket, virtual style", awsAsk{"PUT", "evil.s3.eu-west-1.amazonaws.com", "/a", nil, "", "s3", "eu-west-1", "", place}, false},
		{"case 19: path style", awsAsk{"PUT", s3Regional, "/evil/a", nil, "", "s3", "eu-west-1", "", place}, false},
		{"case 19: escaped", awsAsk{"PUT", s3Regional, "/acme%2Dbuild/a", nil, "", "s3", "eu-west-1", "", place}, false},
		{"case 19: with an escaped slash", awsAsk{"PUT", s3Regional, "/acme-build%2F..%2Fevil/a", nil, "", "s3", "eu-west-1", "", place}, false},
		{"case 19: dots", awsAsk{"PUT", s3Regional, "/acme-build/../evil/a", nil, "", "s3", "eu-west-1", "", place}, false},
		{"case 19: escaped dots", awsAsk{"PUT", s3Regional, "/acme-build/%2e%2E%2fevil/a", nil, "", "s3", "eu-west-1", "", place}, false},
		{"case 19: ?acl", awsAsk{"PUT", s3Own, "/a?acl", nil, "", "s3", "eu-west-1", "", place}, false},
		{"case 19: ?policy", awsAsk{"PUT", s3Own, "/?policy", nil, "", "s3", "eu-west-1", "", place}, false},
		{"case 19: ?%70olicy", awsAsk{"PUT", s3Own, "/?%70olicy", nil, "", "s3", "eu-west-1", "", place}, false},
		{"case 19: ?website", awsAsk{"PUT", s3Own, "/?website", nil, "", "s3", "eu-west-1", "", place}, false},
		{"case 19: ?replication", awsAsk{"PUT", s3Own, "/?replication", nil, "", "s3", "eu-west-1", "", place}, false},
		{"case 19: ?notification", awsAsk{"PUT", s3Own, "/?notification", nil, "", "s3", "eu-west-1", "", place}, false},
		{"case 19: two operations", awsAsk{"PUT", s3Own, "/a?tagging&acl", nil, "", "s3", "eu-west-1", "", place}, false},
		{"case 19: copy from elsewhere", awsAsk{"PUT", s3Own, "/a", []string{"X-Amz-Copy-Source: /evil/a"}, "", "s3", "eu-west-1", "", place}, false},
		{"case 19: copy from an escaped bucket", awsAsk{"PUT", s3Own, "/a", []string{"X-Amz-Copy-Source: %65vil/a"}, "", "s3", "eu-west-1", "", place}, false},
		{"case 19: copy from an access point", awsAsk{"PUT", s3Own, "/a", []string{"X-Amz-Copy-Source: arn:aws:s3:eu-west-1:999999999999:accesspoint/x/object/y"}, "", "s3", "eu-west-1", "", place}, false},
		{"case 19: two sources", awsAsk{"PUT", s3Own, "/a", []string{"X-Amz-Copy-Source: acme-build/a", "X-Amz-Copy-Source: evil/a"}, "", "s3", "eu-west-1", "", place}, false},
		{"a public ACL", awsAsk{"PUT", s3Own, "/a", []string{"X-Amz-Acl: public-read"}, "", "s3", "eu-west-1", "", place}, false},
		{"a grant", awsAsk{"PUT", s3Own, "/a", []string{"X-Amz-Grant-Read: id=evil"}, "", "s3", "eu-west-1", "", place}, false},
		{"create-bucket, which ignores the owner", awsAsk{"PUT", s3Regional, "/acme-build", nil, "", "s3", "eu-west-1", "", place}, false},
		{"a form", awsAsk{"POST", s3Own, "/", []string{"Content-Type: multipart/form-data; boundary=x"}, "", "s3", "eu-west-1", unsigned, place}, false},
		{"an access point", awsAsk{"GET", "x-999999999999.s3-accesspoint.eu-west-1.amazonaws.com", "/a", nil, "", "s3", "eu-west-1", "", place}, false},
		{"S3 Control", awsAsk{"GET", "123456789012.s3-control.eu-west-1.amazonaws.com", "/v20180820/bucket", nil, "", "s3", "eu-west-1", "", place}, false},
		{"case 20: a foreign signed URL", awsAsk{"PUT", s3Own, "/a?X-Amz-Credential=AKIAFOREIGN&X-Amz-Signature=00", nil, "", "s3", "eu-west-1", "", place}, false},
		{"case 20: of version 2", awsAsk{"GET", s3Own, "/a?AWSAccessKeyId=AKIAFOREIGN&Signature=00&Expires=1", nil, "", "s3", "eu-west-1", "", place}, false},
		{"case 21", awsAsk{"PUT", s3Own, "/a", nil, "", "s3", "eu-west-1", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", place}, false},
		{"case 21: with a trailer", awsAsk{"PUT", s3Own, "/a", nil, "", "s3", "eu-west-1", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", place}, false},
		{"no hash of the body outside S3", awsAsk{"POST", stsHost, "/", []string{formType, fieldHash + ": " + unsigned}, "Action=GetCallerIdentity", "sts", "eu-west-1", unsigned, place}, false},
		{"a plus in the query", awsAsk{"GET", s3Own, "/?list-type=2&prefix=a+b", nil, "", "s3", "eu-west-1", "", place}, false},
		{"another credential beside it", awsAsk{"GET", s3Own, "/a", []string{"X-Api-Key: foreign"}, "", "s3", "eu-west-1", "", place}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := row.ask.signed(t)
			a := set.Apply(r)
			if a.NeedsBody {
				r.Body = []byte(row.ask.body)
				a = set.Apply(r)
			}
			if !row.passes {
				if a.Refused == "" || a.Unavailable || a.NeedsBody || a.Kind != "" {
					t.Errorf("it passes: %+v", a)
				}
				return
			}
			if a.Refused != "" || a.Kind != AWS || a.Added != nil {
				t.Fatalf("%+v", a)
			}
			got := arrives(r, &a)
			scope, err := realAWS.Verify(got, []byte(row.ask.body))
			if err != nil || scope != (testaws.Scope{Region: row.ask.region, Service: row.ask.service}) {
				t.Errorf("the server finds %v, %v", scope, err)
			}
			if a.Target != r.Target || got.Header.Get("Range") != r.Fields.Get("Range") || strings.Contains(fmt.Sprint(a.Fields), "EGRESSD") {
				t.Errorf("%v %v", a.Target, a.Fields)
			}
			if owner := got.Header.Values(fieldOwner); strings.Contains(row.ask.host, "s3") && row.name != "list-buckets" && fmt.Sprint(owner) != "[123456789012]" {
				t.Errorf("the condition about the owner is %v", owner)
			}
			if source := got.Header.Get(sourceOwner); (source == "123456789012") != (got.Header.Get(fieldSource) != "") {
				t.Errorf("the condition about the source is %q", source)
			}
		})
	}
}

// TestAWSWithoutASignature reads what the policy names, and nothing else.
func TestAWSWithoutASignature(t *testing.T) {
	set := NewSet(Key{1}, []*Credential{awsCredential(t, wholeLimits)})
	for _, row := range []struct {
		method, host, target, rule string
		passes                     bool
	}{
		{"GET", s3Own, "/a", "aws", true},
		{"GET", "public.s3.amazonaws.com", "/a", "aws", true}, // whose host a rule names
		{"GET", s3Regional, "/acme-build/a", "aws", true},
		{"GET", s3Regional, "/evil/data", "aws", false},
		{"PUT", s3Own, "/a", "aws", false},
		{"POST", stsHost, "/?Action=AssumeRoleWithWebIdentity", "aws", false},
		{"GET", s3Own, "/a?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAFOREIGN", "aws", false},
		{"GET", "ec2.eu-west-1.amazonaws.com", "/", "", true},
		{"GET", "any.s3.amazonaws.com", "/a?X-Amz-Signature=00", "", false}, // case 20
		{"GET", "example.com", "/a?X-Amz-Signature=00", "", true},
	} {
		r := &Request{Sandbox: "ci", Rule: row.rule, Host: row.host, Authority: row.host, Method: row.method}
		r.Target.Path, r.Target.Query, r.Target.HasQuery = strings.Cut(row.target, "?")
		if a := set.Apply(r); (a.Refused == "") != row.passes || a.Kind != "" || len(a.Fields) > 0 {
			t.Errorf("%s %s%s: %+v", row.method, row.host, row.target, a)
		}
	}
}

// TestHostileSignatures are refused: each could be read in two ways, or is another scheme.
func TestHostileSignatures(t *testing.T) {
	const scope, rest = "Credential=K/20260101/eu-west-1/s3/aws4_request", "SignedHeaders=host, Signature=0000000000000000000000000000000000000000000000000000000000000000"
	if got, problem := parseSignature(sigV4 + " " + scope + ", " + rest); problem != "" || got != (signature{"K", "eu-west-1", "s3"}) {
		t.Fatalf("%v %s", got, problem)
	}
	for _, value := range []string{
		"", "Bearer K", sigV4, sigV4 + " ", sigV4 + " " + scope, sigV4 + " " + rest,
		sigV4 + " " + scope + ", " + scope + ", " + rest, sigV4 + " " + scope + ", " + rest + ", Signature=00", sigV4 + " " + scope + ", " + rest + ", X=y",
		sigV4 + " " + strings.Replace(scope, "s3", "S3", 1) + ", " + rest, sigV4 + " " + strings.Replace(scope, "s3", "s3/sts", 1) + ", " + rest,
		sigV4 + " " + strings.Replace(scope, "aws4_request", "aws5_request", 1) + ", " + rest, sigV4 + " " + strings.Replace(scope, "20260101", "2026", 1) + ", " + rest,
		"AWS4-ECDSA-P256-SHA256 " + scope + ", " + rest, "aws4-hmac-sha256 " + scope + ", " + rest, "AWS K:c2ln",
	} {
		if got, problem := parseSignature(value); problem == "" {
			t.Errorf("%q is read as %v", value, got)
		}
	}
}

// TestAWSAtAnOwnInstallation has buckets in paths alone, such as MinIO.
func TestAWSAtAnOwnInstallation(t *testing.T) {
	c := awsCredential(t, AWSLimits{Regions: []string{"auto"}, Services: []string{"s3"}, Buckets: []string{"acme-build"}})
	c.Places = KindNamed(AWS).PlacesAt([]string{"minio.example.com"})
	set := NewSet(Key{1}, []*Credential{c})
	for target, passes := range map[string]bool{"/acme-build/a": true, "/evil/a": false, "/acme-build/a?acl": false} {
		r := awsAsk{"PUT", "minio.example.com", target, nil, "text", "s3", "auto", unsigned, placeholderOf(t, set, "ci")}.signed(t)
		a := set.Apply(r)
		if (a.Refused == "") != passes {
			t.Fatalf("%s: %+v", target, a)
		}
		if passes {
			if _, err := realAWS.Verify(arrives(r, &a), []byte("text")); err != nil || a.Fields.Has(fieldOwner) {
				t.Errorf("%v %v", err, a.Fields)
			}
		}
	}
}

var scopeWritten = regexp.MustCompile(`Credential=([^/]*)/[0-9]{8}/([^/]*)/([^/]*)/aws4_request`)

// TestSignaturesAreReadAsTheyAreWritten by the SDK. A changed one is refused, or has one scope, and that is read.
func TestSignaturesAreReadAsTheyAreWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.StringMatching(`[A-Z0-9a-z_]{1,60}`).Draw(t, "key")
		region, service := rapid.StringMatching(`[a-z]{2}(-[a-z]{2,9}){1,2}-[0-9]`).Draw(t, "region"), rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,12}[a-z0-9])?`).Draw(t, "service")
		r, _ := http.NewRequest("GET", "https://x.test/", nil)
		r.Header.Set("X-Amz-Meta", rapid.StringMatching(`[ -~]{0,9}`).Draw(t, "field"))
		if err := v4.NewSigner().SignHTTP(r.Context(), aws.Credentials{AccessKeyID: key, SecretAccessKey: "s"}, r, emptySHA256, service, region, time.Now()); err != nil {
			t.Fatal(err)
		}
		value := r.Header.Get("Authorization")
		got, problem := parseSignature(value)
		if problem != "" || got != (signature{key, region, service}) {
			t.Fatalf("%q is read as %v, %q", value, got, problem)
		}
		at := rapid.IntRange(0, len(value)-1).Draw(t, "at")
		changed := value[:at] + rapid.SampledFrom([]string{"", "/", ",", "=", " ", "A", "%41", "\t", "Credential=x/20260101/a/b/aws4_request, "}).Draw(t, "text") + value[at+1:]
		if got, problem := parseSignature(changed); problem == "" {
			scopes := scopeWritten.FindAllStringSubmatch(changed, -1)
			if len(scopes) != 1 || got != (signature{scopes[0][1], scopes[0][2], scopes[0][3]}) || strings.Count(changed, "Signature=") != 1 {
				t.Fatalf("%q is read as %v", changed, got)
			}
		}
	})
}

func TestSourcesOfAWS(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	printed := `{"Version": 1, "AccessKeyId": "ASIAREALREALREALREAL", "SecretAccessKey": "REALsecretREALsecretREALsecretREALsecret", "SessionToken": "REALtokenREALtoken/+==", "Expiration": "%s"}`
	soon := fmt.Sprintf(printed, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	profiles := write("credentials", awsProfiles)
	t.Setenv("AGENT_AWS_ACCESS_KEY_ID", realAWS.ID)
	t.Setenv("AGENT_AWS_SECRET_ACCESS_KEY", realAWS.Secret)
	t.Setenv("AGENT_AWS_SESSION_TOKEN", realAWS.Token)
	t.Setenv("HALF_ACCESS_KEY_ID", realAWS.ID)
	for _, row := range []struct {
		name string
		from Source
		ok   bool
		ends bool
	}{
		{"a profile", Source{File: profiles, Profile: "agent"}, true, false},
		{"a profile of a configuration", Source{File: write("config", strings.ReplaceAll(awsProfiles, "[ agent ]", "[profile  agent]")), Profile: "agent"}, true, false},
		{"a profile that is missing", Source{File: profiles, Profile: "age"}, false, false},
		{"a profile without a key", Source{File: profiles, Profile: "empty"}, false, false},
		{"variables", Source{Env: "AGENT_AWS_ACCESS_KEY_ID"}, true, false},
		{"half of them", Source{Env: "HALF_ACCESS_KEY_ID"}, false, false},
		{"a command", Source{Command: []string{"echo", soon}}, true, true},
		{"a file of the same", Source{File: write("key.json", soon)}, true, true},
		{"one that has expired", Source{Command: []string{"echo", fmt.Sprintf(printed, "2020-01-01T00:00:00Z")}}, false, false},
		{"another version", Source{Command: []string{"echo", strings.Replace(soon, "1", "2", 1)}}, false, false},
		{"no JSON", Source{Command: []string{"echo", realAWS.Secret}}, false, false},
	} {
		s := Spec{AWS: &AWSLimits{}, From: row.from}
		got, until, err := s.readAWS(t.Context(), func(p string) string { return p })
		if (err == nil) != row.ok || (until != 0) != row.ends {
			t.Errorf("%s: %d %v", row.name, until, err)
		}
		if row.ok && (testaws.Key{ID: got.id, Secret: got.secret, Token: got.token}) != realAWS {
			t.Errorf("%s: %v", row.name, got)
		}
		if err != nil && strings.Contains(err.Error(), "REAL") {
			t.Errorf("%s: the error shows it: %v", row.name, err)
		}
	}
}
