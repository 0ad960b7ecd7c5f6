package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/credentials"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
)

// keyed is a configuration whose rule "key" for api.example.com has inject
// from the given source.
func keyed(t *testing.T, source string) *config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), config.FileName)
	text := "version: 1\nallow:\n  - {host: api.example.com, id: key, inject: {header: X-Key, " + source + "}}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func destination(t *testing.T, text string) policy.Destination {
	t.Helper()
	dst, err := policy.ParseDestination(text)
	if err != nil {
		t.Fatal(err)
	}
	return dst
}

// sent is the value that a request by the rule would carry, or "".
func (k *keyring) sent(rule, digest string, dst policy.Destination) string {
	a := k.apply(digest, dst, &credentials.Request{Rule: rule, Host: dst.Host})
	if a.Refused != "" || len(a.Fields) == 0 {
		return ""
	}
	return a.Fields[0].Value
}

func reading(t *testing.T, c *config.Config, digest string) (*policyKeys, error) {
	t.Helper()
	return readCredentials(t.Context(), c, nil, digest, credentials.Key{}, func(err error) { t.Error(err) })
}

// noKeys are those of a policy without credentials.
func noKeys(digest string) *policyKeys {
	return &policyKeys{digest: digest, set: credentials.NewSet(credentials.Key{}, nil)}
}

func TestACredentialComesFromItsSource(t *testing.T) {
	t.Setenv("EGRESSD_TEST_KEY", "from-the-environment")
	for source, want := range map[string]string{
		"file: key.txt":                                  "from-a-file",
		`env: EGRESSD_TEST_KEY, value: "k {}"`:           "k from-the-environment",
		`command: [echo, "from a command"], value: "{}"`: "from a command",
	} {
		c := keyed(t, source)
		if err := os.WriteFile(c.Relative("key.txt"), []byte("from-a-file\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		set, err := reading(t, c, "sha256:1")
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		var k keyring
		k.add(set)
		k.keep(set, false, func(err error) { t.Error(err) })
		if got := k.sent("key", "sha256:1", destination(t, "api.example.com:443")); got != want {
			t.Errorf("%s: sent %q, want %q", source, got, want)
		}
		k.close()
	}
}

func TestACredentialIsForItsPolicyRuleAndDestinationOnly(t *testing.T) {
	c := keyed(t, "command: [echo, a-long-key]")
	before, err := reading(t, c, "sha256:1")
	if err != nil {
		t.Fatal(err)
	}
	next, err := reading(t, c, "sha256:2")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var k keyring
		defer k.close()
		found := func(rule, digest, dst string) bool { return k.sent(rule, digest, destination(t, dst)) != "" }
		if found("key", "sha256:1", "api.example.com:443") {
			t.Error("an empty ring had a credential")
		}
		k.add(before)
		k.keep(before, false, nil)
		for _, other := range [][3]string{
			{"other", "sha256:1", "api.example.com:443"},
			{"key", "sha256:2", "api.example.com:443"},
			{"key", "sha256:1", "api.example.com:8443"},
			{"key", "sha256:1", "example.com:443"},
		} {
			if found(other[0], other[1], other[2]) {
				t.Errorf("%v has a credential", other)
			}
		}
		k.add(next)
		k.drop(next)
		if !found("key", "sha256:1", "api.example.com:443") || found("key", "sha256:2", "api.example.com:443") {
			t.Error("a policy that was not put in force took a credential along")
		}
		k.add(next)
		k.keep(next, false, nil)
		if !found("key", "sha256:1", "api.example.com:443") || !found("key", "sha256:2", "api.example.com:443") {
			t.Error("while the policy changes, one of the two has no credential")
		}
		time.Sleep(decidedMost + time.Second)
		if found("key", "sha256:1", "api.example.com:443") || !found("key", "sha256:2", "api.example.com:443") {
			t.Error("the policy before still has its credential, or the one in force has lost it")
		}
	})
}

// TestEgressdAsksServersWhereTheFileLetsIt: special-purpose addresses are closed to it, whether a name leads to them or not.
func TestEgressdAsksServersWhereTheFileLetsIt(t *testing.T) {
	f, err := file.Parse("f", []byte("version: 1\nallow: [id.example.com, \"10.0.0.0/24\", id.corp.internal]\nunsafe_allow: [\"127.0.0.1:8443\"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{"id.example.com": "93.184.216.34", "here.example.com": "127.0.0.1", "far.example.com": "10.9.9.9", "near.example.com": "10.0.0.9", "both.example.com": "93.184.216.34 10.9.9.9", "id.corp.internal": "10.0.0.9"}
	looked := ""
	addrs := ownAddrs(&config.Config{File: f}, func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("93.184.216.1")} }, func(_ context.Context, name string) (all []netip.Addr, err error) {
		looked += name + " "
		for text := range strings.FieldsSeq(names[name]) {
			all = append(all, netip.MustParseAddr(text))
		}
		return all, nil
	})
	for ask, want := range map[string]string{
		"id.example.com:443": "[93.184.216.34]", "ID.example.com:443": "[93.184.216.34]", "93.184.216.34:8443": "[93.184.216.34]",
		"near.example.com:443": "[10.0.0.9]", "id.corp.internal:443": "[10.0.0.9]", "10.0.0.9:443": "[10.0.0.9]", "here.example.com:8443": "[127.0.0.1]",
		"here.example.com:443": "", "far.example.com:443": "", "both.example.com:443": "", "10.9.9.9:443": "", "169.254.169.254:443": "", "93.184.216.1:443": "", "localhost:443": "", "id.other.internal:443": "",
	} {
		host, port, _ := strings.Cut(ask, ":")
		n, _ := strconv.ParseUint(port, 10, 16)
		got, err := addrs(t.Context(), host, uint16(n))
		if want == "" && (err == nil || len(got) > 0) || want != "" && (err != nil || fmt.Sprint(got) != want) {
			t.Errorf("%s: %v, %v, want %s", ask, got, err, want)
		}
	}
	if strings.Contains(looked, "localhost") || strings.Contains(looked, "other.internal") {
		t.Errorf("looked up %s", looked)
	}
}

// TestOnlyARuleForLargeFilesLetsTheirSignaturesPass, not another one that lets the same request.
func TestOnlyARuleForLargeFilesLetsTheirSignaturesPass(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("a-long-key"), 0o600); err != nil {
		t.Fatal(err)
	}
	spec := credentials.Spec{Name: "n", Places: []credentials.Place{{Host: "store.test", Header: "Authorization", Forms: credentials.Bearer, Add: "Bearer {}"}}, From: credentials.Source{File: path}}
	one := credentials.New(spec, nil, func(path string) string { return path })
	if err := one.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	store := destination(t, "store.test:443")
	pattern, err := policy.ParsePattern("store.test")
	if err != nil {
		t.Fatal(err)
	}
	keys := &policyKeys{set: credentials.NewSet(credentials.Key{}, []*credentials.Credential{one}), rules: []policy.Injection{
		{Rule: "lfs", Pattern: pattern, Credential: "n", LFS: true}, {Rule: "all", Pattern: pattern, Credential: "n"},
	}}
	for rule, passes := range map[string]bool{"lfs": true, "all": false, "": false} {
		r := &credentials.Request{Rule: rule, Host: "store.test", Named: true}
		r.Target.Path, r.Target.Query = "/x", "X-Amz-Signature=00"
		if a := keys.apply(store, r); (a.Refused == "") != passes || a.Added != nil || !r.Named {
			t.Errorf("by the rule %q: %+v", rule, a)
		}
	}
}

// TestCredentialsAreForgottenWhilePoliciesChange has a policy come each second for ten minutes,
// so that it is never quiet: what was replaced long ago is held no more, and what was a moment
// ago still is.
func TestCredentialsAreForgottenWhilePoliciesChange(t *testing.T) {
	const policies = 600
	for name, digest := range map[string]func(i int) string{
		"two in turn":   func(i int) string { return fmt.Sprint("sha256:", i%2) },
		"always others": func(i int) string { return fmt.Sprint("sha256:", i) },
	} {
		synctest.Test(t, func(t *testing.T) {
			var k keyring
			defer k.close()
			most := 0
			for i := range policies {
				set := noKeys(digest(i))
				k.add(set)
				k.keep(set, false, nil)
				most = max(most, len(*k.held.Load()))
				time.Sleep(time.Second)
			}
			if bound := int(decidedMost/time.Second) + 1; most > bound || most < 2 {
				t.Errorf("%s: the credentials of %d policies were held at a time, want 2 to %d", name, most, bound)
			}
			held := *k.held.Load()
			if held[0].digest != digest(policies-1) || held[1].digest != digest(policies-2) {
				t.Errorf("%s: the credentials of %s and %s are held first", name, held[0].digest, held[1].digest)
			}
			time.Sleep(decidedMost)
			if n := len(*k.held.Load()); n != 1 {
				t.Errorf("%s: the credentials of %d policies are held when all but one is over", name, n)
			}
		})
	}
}

// TestCredentialsAreForgottenThoughAReloadFails has one fail while those before are still held,
// and one that is under way when their time is over.
func TestCredentialsAreForgottenThoughAReloadFails(t *testing.T) {
	for name, lasts := range map[string]time.Duration{"at once": 0, "later": 2 * decidedMost} {
		synctest.Test(t, func(t *testing.T) {
			var k keyring
			defer k.close()
			for _, digest := range []string{"sha256:1", "sha256:2"} {
				set := noKeys(digest)
				k.add(set)
				k.keep(set, false, nil)
				time.Sleep(time.Second)
			}
			failing := noKeys("sha256:3")
			k.add(failing)
			time.Sleep(lasts)
			if held := *k.held.Load(); held[0] != failing {
				t.Errorf("%s: what is about to be in force is not held", name)
			}
			k.drop(failing)
			time.Sleep(decidedMost)
			if held := *k.held.Load(); len(held) != 1 || held[0].digest != "sha256:2" {
				t.Errorf("%s: the credentials of %d policies are held", name, len(held))
			}
		})
	}
}

// TestACredentialThatCannotBeHad has errors that say where, and never what.
func TestACredentialThatCannotBeHad(t *testing.T) {
	for source, want := range map[string]string{
		"file: missing.txt":                                  "no such file",
		"env: EGRESSD_TEST_UNSET":                            "EGRESSD_TEST_UNSET is not set",
		`command: [sh, "-c", "echo leaked-key >&2; exit 3"]`: "exit status 3",
		"command: [echo, leaked]":                            "8",
	} {
		_, err := reading(t, keyed(t, source), "sha256:1")
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "rule key") {
			t.Errorf("%s: %v, want %q", source, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "leaked-key") {
			t.Errorf("%s: the error shows what the command said: %v", source, err)
		}
	}
}

func TestACredentialIsReadAgain(t *testing.T) {
	c := keyed(t, "file: key.txt, refresh: 1s")
	path := c.Relative("key.txt")
	write := func(text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	write("first-key")
	set, err := reading(t, c, "sha256:1")
	if err != nil {
		t.Fatal(err)
	}
	var k keyring
	var complaints atomic.Int32
	k.add(set)
	k.keep(set, false, func(error) { complaints.Add(1) })
	defer k.close()
	now := func() string { return k.sent("key", "sha256:1", destination(t, "api.example.com:443")) }
	if got := now(); got != "first-key" {
		t.Fatalf("sent %q", got)
	}
	write("second-key")
	eventually(t, func() bool { return now() == "second-key" })
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return complaints.Load() > 0 })
	if got := now(); got != "second-key" {
		t.Errorf("after a failure %q is sent", got)
	}
}

func eventually(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not come about")
		}
	}
}

// TestResponsesOfAHostAreStruckOfAllItsCredentials: of every rule and port, of the value
// before as well, and of no other host's.
func TestResponsesOfAHostAreStruckOfAllItsCredentials(t *testing.T) {
	path := filepath.Join(t.TempDir(), config.FileName)
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(config.FileName, `version: 1
allow:
  - {host: api.example.com, id: one, paths: [/one], inject: {header: X-Key, file: one}}
  - {host: "api.example.com:8443", id: two, inject: {header: X-Key, file: two}}
  - {host: 93.184.216.34, id: addr, inject: {header: X-Key, file: addr}}
`)
	write("one", "first-of-one")
	write("two", "first-of-two")
	write("addr", "of-the-address")
	c, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	set, err := reading(t, c, "sha256:1")
	if err != nil {
		t.Fatal(err)
	}
	var k keyring
	if n, _ := k.redaction(destination(t, "api.example.com:443")); n != nil {
		t.Error("an empty ring strikes something")
	}
	k.add(set)
	const all = "first-of-one first-of-two other-of-one of-the-address"
	check := func(dst, want string) {
		t.Helper()
		got := all
		if n, whole := k.redaction(destination(t, dst)); n != nil {
			if !whole {
				t.Errorf("%s may answer in pieces", dst)
			}
			got, _ = n.RedactString(all)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", dst, got, want)
		}
	}
	check("api.example.com:443", "************ ************ other-of-one of-the-address")
	check("api.example.com:80", "************ ************ other-of-one of-the-address")
	check("93.184.216.34:443", "first-of-one first-of-two other-of-one **************")
	check("example.com:443", all)
	write("one", "other-of-one")
	for range 2 { // the second time there is nothing new
		if err := set.set.All()[0].Read(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	k.renewed()
	check("api.example.com:443", "************ ************ ************ of-the-address")
	k.drop(set)
	check("api.example.com:443", all)
}
