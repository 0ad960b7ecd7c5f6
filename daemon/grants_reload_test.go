package daemon

import (
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/sandbox"
)

// TestAReloadKeepsWhatIsDeniedForLess: a denial that ends earlier does not take a grant with it.
func TestAReloadKeepsWhatIsDeniedForLess(t *testing.T) {
	w := newGrantsWorld(t, "allow: [other.test]\n")
	host := "a.test:" + silent(t)
	w.gets(t, "allow", 2*time.Hour, host)
	w.gets(t, "deny", time.Minute, host)
	w.rewrite(t, "allow: [other.test, unrelated.test]\n")
	if err := w.reloads.reload(t.Context(), "test", true); err != nil {
		t.Fatal(err)
	}
	if status, _ := w.connect(t, host); status != 403 {
		t.Errorf("while it is denied: %d", status)
	}
	w.pass(time.Minute)
	w.grants.expire(t.Context())
	c, refused := w.tunnel(t, host)
	if c == nil {
		t.Fatalf("the denial has taken the grant with it: %s", refused)
	}
	c.Close()
	if strings.Contains(w.talk.String(), "counts no longer") {
		t.Errorf("it is said to be over:\n%s", w.talk.String())
	}
}

// TestAGrantIsBesideTheFileInForce has a reload fail after its policy is in force.
func TestAGrantIsBesideTheFileInForce(t *testing.T) {
	w := newGrantsWorld(t, "allow: [old.test]\n")
	w.rewrite(t, "allow: [other.test]\ndeny: [old.test]\n")
	next, err := w.reloads.prepare(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	twice := sandbox.Entry{Name: "twice"}
	next.entries = append(next.entries, twice, twice)
	if err := w.reloads.enforce(t.Context(), next, "reloaded", "test"); err == nil {
		t.Fatal("two sandboxes of one name are in force")
	}
	inForce := w.Gate.Digest()
	id := w.gets(t, "allow", time.Hour, "new.test").Grants[0].ID
	if _, err := w.api().revoke(t.Context(), someone, id); err != nil {
		t.Fatal(err)
	}
	if w.Gate.Digest() != inForce {
		t.Error("a grant has put the file before in force")
	}
}
