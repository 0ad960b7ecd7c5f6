package credentials

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/egressd/egressd/internal/http1"
)

// AWS is the kind whose secret never travels: it signs requests (Signature Version 4).
const AWS = "aws"

// AWSLimits say which requests egressd signs. An empty list is of nothing, except that Buckets may be empty if Account is set.
type AWSLimits struct {
	Regions  []string
	Services []string // by the names that stand in signatures; all are in [AWSServices]
	Buckets  []string // of S3
	Account  string   // twelve digits; the owner of the buckets; "" for any
}

const (
	sigV4       = "AWS4-HMAC-SHA256"
	emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	unsigned    = "UNSIGNED-PAYLOAD"
	unsignedEnd = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"

	fieldDate   = "X-Amz-Date"
	fieldHash   = "X-Amz-Content-Sha256"
	fieldToken  = "X-Amz-Security-Token"
	fieldTarget = "X-Amz-Target"
	fieldOwner  = "X-Amz-Expected-Bucket-Owner"
	fieldSource = "X-Amz-Copy-Source"
	sourceOwner = "X-Amz-Source-Expected-Bucket-Owner"
)

// A signature is what the client's Authorization says of a request. What it signs does not matter: egressd signs anew.
type signature struct{ key, region, service string }

// parseSignature reads "AWS4-HMAC-SHA256 Credential=KEY/DATE/REGION/SERVICE/aws4_request, SignedHeaders=…, Signature=…". It
// accepts what the tools of AWS send, and no more. problem is for people, and holds nothing of the value.
func parseSignature(value string) (s signature, problem string) {
	rest, ok := strings.CutPrefix(value, sigV4+" ")
	switch {
	case strings.HasPrefix(value, "AWS4-ECDSA-P256-SHA256"):
		return s, "is signed by SigV4A, which egressd does not do; use the endpoint of one region"
	case !ok:
		return s, "is no signature of Signature Version 4"
	}
	found := map[string]string{}
	for part := range strings.SplitSeq(rest, ",") {
		name, value, _ := strings.Cut(strings.TrimLeft(part, " "), "=")
		if _, twice := found[name]; twice || value == "" {
			return s, malformedSignature
		}
		found[name] = value
	}
	scope := strings.Split(found["Credential"], "/")
	plain := func(text, more string) bool { return text != "" && strings.Trim(text, lowerDigits+more) == "" }
	switch {
	case len(found) != 3 || found["SignedHeaders"] == "" || len(scope) != 5 || scope[4] != "aws4_request":
		return s, malformedSignature
	case len(found["Signature"]) != 64 || strings.Trim(found["Signature"], "0123456789abcdef") != "":
		return s, malformedSignature
	case len(scope[1]) != 8 || strings.Trim(scope[1], "0123456789") != "" || !plain(scope[2], "-") || !plain(scope[3], "-"):
		return s, malformedSignature
	}
	return signature{scope[0], scope[2], scope[3]}, ""
}

const (
	malformedSignature = "is a signature that egressd cannot read"
	lowerDigits        = "abcdefghijklmnopqrstuvwxyz0123456789"
)

// applyAWS signs a request anew that the placeholder has signed, and refuses what is not to be signed.
func (c *Credential) applyAWS(key *Key, r *Request, a *Answer) {
	refuse := func(format string, args ...any) { a.Refused = fmt.Sprintf(format, args...) }
	if c.letsForeign(r.Target.Path) {
		a.Note, a.Kind = "the request may have a credential of the sandbox's own, so it was not signed", "foreign"
		return
	}
	if name := c.foreignToAWS(r); name != "" {
		refuse("the request has a credential in %s; egressd signs requests for %s in Authorization alone", name, c.Name)
		return
	}
	given := r.Fields.Values("Authorization")
	if len(given) == 0 {
		if r.Rule != "" {
			a.Refused = c.unsignedProblem(r)
		}
		return
	}
	s, problem := parseSignature(given[0])
	switch {
	case len(given) > 1:
		refuse("the request has two credentials, both in Authorization; send one")
	case problem != "":
		refuse("the credential in Authorization %s", problem)
	case !c.isPlaceholder(s.key, key.core(r.Sandbox, c.Name)):
		refuse("the request is signed with another key than the placeholder of %s; use AWS_ACCESS_KEY_ID as it is", c.Name)
	case r.Rule == "":
	case !slices.Contains(c.AWS.Regions, s.region):
		refuse("the credential %s is not for the region %s; add it to regions", c.Name, s.region)
	case !slices.Contains(c.AWS.Services, s.service):
		refuse("the credential %s is not for the service %s; add it to services", c.Name, s.service)
	default:
		c.signAnew(r, a, s)
	}
}

// foreignToAWS names a place with another credential than a signature in Authorization, or returns "". URLs that are signed
// themselves are among them: the key in such a URL may be anybody's.
func (c *Credential) foreignToAWS(r *Request) string {
	for _, one := range c.find(r) {
		if !strings.EqualFold(one.name, "Authorization") && !strings.EqualFold(one.name, fieldToken) {
			return one.name
		}
	}
	name := ""
	eachParameter(r.Target.Query, func(parameter, _ string, _ parameter) {
		switch lower := strings.ToLower(parameter); {
		case strings.HasPrefix(lower, "x-amz-") && lower != "x-amz-target", lower == "signature", lower == "awsaccesskeyid":
			name = parameter
		}
	})
	if name != "" {
		return "the query (a signed URL)"
	}
	return ""
}

// unsignedProblem says why a request without a signature may not pass. Reading a bucket that the policy names needs none.
func (c *Credential) unsignedProblem(r *Request) string {
	host := c.s3Host(r.Host)
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case !host.isS3 || !reads:
		return "the request has no signature; sign it with the placeholder of " + c.Name + ", which egressd exports as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
	case host.bucket != "": // which the rule names
		return ""
	}
	return c.s3Problem(r, host)
}

// signAnew checks what a request does, and signs it with the real key.
func (c *Credential) signAnew(r *Request, a *Answer, s signature) {
	fields := append(http1.Fields(nil), r.Fields...).Delete("Authorization", fieldDate, fieldToken)
	host := c.s3Host(r.Host)
	if a.Refused = c.awsProblem(r, s, host); a.Refused != "" {
		return
	}
	sent := fields.Get(fieldHash)
	needs, problem := payloadOf(sent, s.service)
	switch {
	case problem != "":
		a.Refused = problem
		return
	case needs && r.Body == nil:
		a.NeedsBody = true
		return
	}
	hash := sent
	if needs {
		sum := sha256.Sum256(r.Body)
		hash = hex.EncodeToString(sum[:])
		if sent != "" && sent != hash {
			a.Refused = "the body is not the one of which " + fieldHash + " has the hash"
			return
		}
		if a.Refused = c.operationProblem(r, s.service); a.Refused != "" {
			return
		}
	}
	if host.isS3 && c.AWS.Account != "" {
		fields = fields.Delete(fieldOwner, sourceOwner)
		if !host.service(r.Target.Path) {
			fields = append(fields, http1.Field{Name: fieldOwner, Value: c.AWS.Account})
		}
		if fields.Has(fieldSource) {
			fields = append(fields, http1.Field{Name: sourceOwner, Value: c.AWS.Account})
		}
	}
	c.sign(r, a, s, fields, hash)
}

// awsProblem says why the head of a request is not to be signed.
func (c *Credential) awsProblem(r *Request, s signature, host s3Host) string {
	for name, n := range countAmz(r.Fields) {
		if n > 1 {
			return "the request has the field " + name + " twice; send it once"
		}
	}
	switch {
	case strings.ContainsAny(r.Target.Query, "+;") || !decodes(r.Target.Query) || !plainPath(r.Target.Path):
		return "the query or path can be read in two ways, so its signature could be, too; write a space as %20, and no dots as a segment"
	case host.isS3 != (s.service == serviceS3):
		return "the request is signed for " + s.service + ", which is not the service of its host"
	case host.isS3:
		return c.s3Problem(r, host)
	}
	return ""
}

// countAmz counts the fields that servers of AWS act on.
func countAmz(fields http1.Fields) map[string]int {
	n := map[string]int{}
	for _, f := range fields {
		if lower := strings.ToLower(f.Name); strings.HasPrefix(lower, "x-amz-") || lower == "content-type" || lower == "content-md5" {
			n[lower]++
		}
	}
	return n
}

// plainPath reports whether no server takes a path for another one.
func plainPath(path string) bool {
	text, err := url.PathUnescape(path)
	segments := strings.Split(text, "/")
	return err == nil && !slices.Contains(segments, ".") && !slices.Contains(segments, "..")
}

func decodes(text string) bool {
	_, err := url.PathUnescape(text)
	return err == nil
}

// payloadOf says whether the body has to be read, for the hash that a signature covers.
func payloadOf(sent, service string) (needs bool, problem string) {
	switch {
	case sent == "" && service != serviceS3:
		return true, ""
	case sent == "":
		return false, "the request has no " + fieldHash + ", which S3 asks for"
	case len(sent) == 64 && strings.Trim(sent, "0123456789abcdef") == "":
		return true, ""
	case service == serviceS3 && (sent == unsigned || sent == unsignedEnd):
		return false, ""
	case strings.HasPrefix(sent, "STREAMING-"):
		return false, "the body is signed piece by piece (" + fieldHash + ": STREAMING-…), which egressd cannot sign anew; let the client sign no payload over https"
	}
	return false, fieldHash + " is none that egressd signs"
}

// sign writes the signature, its date and the session token.
func (c *Credential) sign(r *Request, a *Answer, s signature, fields http1.Fields, hash string) {
	keys := c.keys.Load()
	if keys == nil || c.isOver() {
		a.Refused, a.Unavailable = c.unavailable(), true
		return
	}
	head := http.Header{}
	for _, f := range fields {
		if lower := strings.ToLower(f.Name); strings.HasPrefix(lower, "x-amz-") || lower == "content-type" || lower == "content-md5" {
			head.Add(f.Name, f.Value)
		}
	}
	req := &http.Request{
		Method: r.Method, Host: r.Authority, Header: head,
		URL: &url.URL{Scheme: "https", Host: r.Authority, Opaque: "//" + r.Authority + r.Target.Path, RawQuery: r.Target.Query},
	}
	real := aws.Credentials{AccessKeyID: keys.id, SecretAccessKey: keys.secret, SessionToken: keys.token}
	err := signer.SignHTTP(context.Background(), real, req, hash, s.service, s.region, time.Now(), func(o *v4.SignerOptions) {
		o.DisableURIPathEscaping = s.service == serviceS3
	})
	if err != nil { // which no input is known to cause
		a.Refused, a.Unavailable = "the request could not be signed", true
		return
	}
	for _, name := range []string{"Authorization", fieldDate, fieldToken} {
		if value := head.Get(name); value != "" {
			fields = append(fields, http1.Field{Name: name, Value: value})
		}
	}
	a.Fields, a.Kind = fields, c.label()
}

// signer derives keys, and keeps those of the day.
var signer = v4.NewSigner()
