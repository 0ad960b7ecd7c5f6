package exchange

import (
	"testing"
	"time"

	"github.com/egressd/egressd/internal/http1"
)

// TestAnswersOfLFSAreRead reads answers of servers, with other names, ids and signatures: of GitHub (git-lfs/git-lfs#1897, 2017),
// of a server on S3 (git-lfs/git-lfs#3127) and of one that names its action in another way (git-lfs/git-lfs#3300).
func TestAnswersOfLFSAreRead(t *testing.T) {
	now := time.Date(2017, 1, 31, 11, 8, 14, 0, time.UTC)
	const gitHub = `{"objects":[{"oid":"03df","size":699655,"actions":{"upload":{"href":"https://github-cloud.s3.amazonaws.com/alambic/media/1/03/df/03df?actor_id=15",` +
		`"header":{"Authorization":"AWS4-HMAC-SHA256 Credential=AKIAX/20170131/us-east-1/s3/aws4_request,SignedHeaders=host;x-amz-date,Signature=79","x-amz-date":"20170131T110814Z"},"expires_at":"2017-01-31T11:23:14Z"},` +
		`"verify":{"href":"https://lfs.github.com/acme/app/objects/03df/verify","header":{"Authorization":"RemoteAuth ABfnBJ5LL6==","Accept":"application/vnd.git-lfs+json"}}}},{"oid":"41","size":1}]}`
	offers := readLFS([]byte(gitHub))
	if len(offers) != 2 || offers[0].name != "upload" || offers[1].name != "verify" {
		t.Fatalf("%+v", offers)
	}
	for _, o := range offers {
		if o.size != 699655 || len(o.fields) != 2 || o.fields[0].Name != "Authorization" || o.fields[0].Value == "" {
			t.Errorf("%+v", o)
		}
	}
	if held := offers[0].until(now).Sub(now); held != 15*time.Minute {
		t.Errorf("the upload holds for %v", held)
	}
	if held := offers[1].until(now).Sub(now); held != lfsFor {
		t.Errorf("the report holds for %v", held)
	}
	scheme, host, target, ok := splitHref(offers[0].href)
	if !ok || scheme+" "+host+" "+target != "https github-cloud.s3.amazonaws.com:443 /alambic/media/1/03/df/03df?actor_id=15" {
		t.Errorf("%s %s %s, %t", scheme, host, target, ok)
	}
	both := readLFS([]byte(`{"transfer":"basic","objects":[{"actions":{"download":{"href":"https://s3.us-east-2.amazonaws.com/b/6c?X-Amz-Signature=d8","expires_in":86401,"expires_at":"2017-01-31T11:08:15Z"}},"size":3145784,"oid":"6c"}]}`))
	if len(both) != 1 || both[0].size != 3145784 || both[0].until(now).Sub(now) != lfsForMost {
		t.Errorf("%+v", both)
	}
	for _, answer := range []string{
		`{"objects":[{"oid":"32","size":86986,"authenticated":true,"action":{"upload":{"href":"http://postb.in/ZU","expires_in":"86400"}}}]}`,
		`{"objects":[{"oid":"32","size":1,"actions":{"upload":{"href":"https://a.test/x"}}}],"objects":[]}`,
		`{"objects":[{"oid":"32","size":1,"actions":{"upload":{"href":"https://a.test/x"}}}]}x`, `{"message":"Not found"}`, `{"objects":[{"size":1,"error":{"code":404}}]}`, ``,
	} {
		if offers := readLFS([]byte(answer)); len(offers) > 0 {
			t.Errorf("%s has %+v", answer, offers[0])
		}
	}
	for _, href := range []string{"https://a.test", "//a.test/x", "ftp://a.test/x", "https://user@a.test/x", "https://a.test/x#y", "https://a.test//x", "https://[::1%25x]/x", "https:///x", "a"} {
		if _, host, target, ok := splitHref(href); ok {
			t.Errorf("%s leads to %s%s", href, host, target)
		}
	}
}

// TestWhatLFSNamesIsKeptForOneSandbox asks for an action as others, too late, and among very many.
func TestWhatLFSNamesIsKeptForOneSandbox(t *testing.T) {
	var l lfsActions
	key := keyOfLFS("PUT", "https", "a.test:443", "/x")
	put := func(sandbox string, key lfsKey, holds time.Duration) {
		l.keep(sandbox, map[lfsKey]lfsAction{key: {digest: "p", until: time.Now().Add(holds), fields: []lfsField{{http1.Field{Name: "A", Value: "b"}, true}}}})
	}
	put("one", key, time.Hour)
	if a, ok := l.find("one", "p", key); !ok || len(a.fields) != 1 {
		t.Errorf("%+v, %t", a, ok)
	}
	for _, other := range []struct {
		sandbox, digest string
		key             lfsKey
	}{{"two", "p", key}, {"one", "q", key}, {"one", "p", keyOfLFS("GET", "https", "a.test:443", "/x")}, {"one", "p", keyOfLFS("PUT", "http", "a.test:443", "/x")}} {
		if _, ok := l.find(other.sandbox, other.digest, other.key); ok {
			t.Errorf("%s under %s finds it", other.sandbox, other.digest)
		}
	}
	for i := range 3 * lfsOfSandbox {
		put("one", keyOfLFS("PUT", "https", "a.test:443", string(rune(i))), time.Minute)
	}
	if _, ok := l.find("one", "p", key); !ok || len(l.of["one"]) > lfsOfSandbox {
		t.Errorf("found %t among %d", ok, len(l.of["one"]))
	}
	put("two", key, 0)
	if _, ok := l.find("two", "p", key); ok {
		t.Error("it is found after its end")
	}
	for i := range 2 * lfsSandboxes {
		put(string(rune('a'+i)), key, time.Minute)
	}
	if len(l.of) > lfsSandboxes {
		t.Errorf("those of %d sandboxes are kept", len(l.of))
	}
}
