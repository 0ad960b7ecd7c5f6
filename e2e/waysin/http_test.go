package waysin

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
)

// TestOrdinaryTraffic carries what programs really send.
func TestOrdinaryTraffic(t *testing.T) {
	world.Covers(t, "H1-01", "H2-14", "SP-08")
	d := world.Start(t, world.PolicyText(t, "P0"))
	c := d.HTTPClient(nil)
	for _, scheme := range []string{"http", "https"} {
		base := scheme + "://a.allowed.test"
		t.Run(scheme+" GET", func(t *testing.T) { d.ExpectBody(t, c, "GET", base+"/x?q=1", nil, "GET /x") })
		t.Run(scheme+" HEAD", func(t *testing.T) { d.ExpectBody(t, c, "HEAD", base+"/", nil, "") })
		t.Run(scheme+" POST", func(t *testing.T) {
			d.ExpectBody(t, c, "POST", base+"/count", bytes.NewReader(make([]byte, 100_000)), "received 100000 bytes, <nil>")
		})
		t.Run(scheme+" chunked POST", func(t *testing.T) {
			d.ExpectBody(t, c, "POST", base+"/count", io.MultiReader(strings.NewReader("abc"), bytes.NewReader(make([]byte, 1<<20))), "received 1048579 bytes, <nil>")
		})
		t.Run(scheme+" large answer", func(t *testing.T) { d.ExpectLarge(t, c, base) })
	}
	t.Run("HTTP/2 in a tunnel", func(t *testing.T) { expectHTTP2(t, d) })
}

func expectHTTP2(t *testing.T, d *world.Daemon) {
	t.Helper()
	c := d.HTTPClient(nil)
	c.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	response, err := c.Get("https://a.allowed.test/h2")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.ProtoMajor != 2 || !strings.Contains(string(body), "GET /h2") {
		t.Errorf("%s %q, %v", response.Proto, body, err)
	}
}

// TestHostileUpstream has hosts answer what would desynchronise the client or
// speak in egressd's name. The client reads the answer to what it asked, or an
// error, and nothing else.
func TestHostileUpstream(t *testing.T) {
	world.Covers(t, "H1-25")
	d := world.Start(t, world.PolicyText(t, "P0"))
	for name := range world.HostileAnswers() {
		t.Run(name, func(t *testing.T) { survives(t, d, name) })
	}
	if kib := d.Memory(t); kib > 128<<10 {
		t.Errorf("egressd holds %d KiB", kib)
	}
	d.Healthy(t, d.Descriptors())
}

func survives(t *testing.T, d *world.Daemon, name string) {
	c, err := d.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(world.Patience))
	fmt.Fprintf(c, "GET http://allowed.test/hostile/%s HTTP/1.1\r\nHost: allowed.test\r\n\r\nGET http://allowed.test/after HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n", name)
	got, err := io.ReadAll(c)
	if err != nil && !world.Gone(err) {
		t.Fatalf("no end: %v after %q", err, world.Shorten(string(got)))
	}
	d.NotFooled(t, string(got))
}

// TestRebinding asks again and again for a name whose address changes to
// loopback after the first answer. What was decided is what is dialled, each
// time.
func TestRebinding(t *testing.T) {
	world.Covers(t, "DN-12")
	d := world.Start(t, world.PolicyText(t, "P0"))
	allow := world.Expectation{Allow: []string{world.AllowedIPv4}}
	deny := world.Expectation{Deny: []policy.Class{policy.AddressDenied}, DstClass: "loopback", Asks: true}
	v := &world.Vector{ID: "DN-12", Says: "a name that moves to loopback", Policy: "P0", Expect: allow, Or: &deny}
	first := d.World.Zone.Mark()
	deadline := time.Now().Add(30 * time.Second)
	asked := func() int { return countOf(d.World.Zone.Since(first), "rebind.allowed.test") }
	for n := 0; n < 100 || asked() < 4 && time.Now().Before(deadline); n++ {
		d.Try(t, v, []string{world.WayConnect, world.WayHTTP, world.WaySOCKS}[n%3], "rebind.allowed.test:443")
		if t.Failed() {
			return
		}
	}
	if asked() < 4 {
		t.Errorf("the name was resolved %d times: nothing was rebound", asked())
	}
}

func countOf(list []string, s string) (n int) {
	for _, x := range list {
		if x == s {
			n++
		}
	}
	return n
}
