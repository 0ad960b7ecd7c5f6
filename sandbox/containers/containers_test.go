package containers

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/pidfd"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// A fakeEngine answers as Docker does, when it is told to.
type fakeEngine struct {
	mu      sync.Mutex
	running map[string]map[string]any // by ID
	hold    chan struct{}             // answers about containers wait until it is closed; nil: they do not
	asked   chan string               // told of each container that is asked about
	events  chan map[string]any
}

func (f *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/events":
		w.(http.Flusher).Flush()
		for {
			select {
			case e := <-f.events:
				json.NewEncoder(w).Encode(e)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	case r.URL.Path == "/_ping":
	case r.URL.Path == "/networks":
		fmt.Fprint(w, `[{"Driver":"bridge","IPAM":{"Config":[{"Subnet":"10.1.0.0/24","Gateway":"10.1.0.1"}]}},{"Driver":"macvlan","IPAM":{"Config":[{"Subnet":"10.2.0.0/24"}]}}]`)
	case strings.HasPrefix(r.URL.Path, "/images/"):
		labels, found := imageLabels[strings.Split(r.URL.Path, "/")[2]]
		if !found {
			w.WriteHeader(http.StatusNotFound)
		}
		json.NewEncoder(w).Encode(map[string]any{"Config": map[string]any{"Labels": labels}})
	case r.URL.Path == "/containers/json":
		f.mu.Lock()
		defer f.mu.Unlock()
		all := []any{}
		for id := range f.running {
			all = append(all, map[string]any{"Id": id})
		}
		json.NewEncoder(w).Encode(all)
	default:
		f.describe(w, strings.Split(r.URL.Path, "/")[2])
	}
}

func (f *fakeEngine) describe(w http.ResponseWriter, id string) {
	f.mu.Lock()
	d, hold := f.running[id], f.hold
	f.mu.Unlock()
	if f.asked != nil {
		f.asked <- id
	}
	if hold != nil {
		<-hold
	}
	if d == nil {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"message":"No such container"}`)
		return
	}
	json.NewEncoder(w).Encode(d)
}

// imageLabels are those of images, by their IDs.
var imageLabels = map[string]map[string]string{
	"sha256:plain": nil, "sha256:poses": {"team": "web", "also": "x", policy.ComposeProject: "shop", policy.ComposeService: "db", composeLabels + "config-hash": "x"},
	"sha256:built": {policy.ComposeProject: "shop", policy.ComposeService: "db", composeLabels + "version": "2.40.3"},
}

// TestLabelsOfImagesAreNotTheContainers has images with labels by which sandboxes are told.
func TestLabelsOfImagesAreNotTheContainers(t *testing.T) {
	f := &fakeEngine{}
	c, _, _ := watch(t, f)
	for n, row := range []struct {
		image        string
		given, count map[string]string
	}{
		{"sha256:plain", map[string]string{"team": "web"}, map[string]string{"team": "web"}},
		{"sha256:poses", map[string]string{}, nil},
		{"sha256:poses", map[string]string{"team": "other", "mine": "y"}, map[string]string{"team": "other", "mine": "y"}},
		{"sha256:poses", map[string]string{"team": "web"}, nil}, // nobody can tell who said it
		{"sha256:built", map[string]string{}, nil},
		{"sha256:built", map[string]string{composeLabels + "config-hash": "1"}, map[string]string{policy.ComposeProject: "shop", policy.ComposeService: "db", composeLabels + "version": "2.40.3", composeLabels + "config-hash": "1"}},
		{"sha256:gone", map[string]string{"team": "web"}, nil},
	} {
		labels := maps.Clone(imageLabels[row.image])
		if labels == nil {
			labels = map[string]string{}
		}
		maps.Copy(labels, row.given)
		d := runs(n+1, fmt.Sprint("c", n), "", 0)
		d["Image"], d["Config"] = row.image, map[string]any{"Image": "i", "Labels": labels}
		f.set(n+1, d)
		got, err := c.api.describe(t.Context(), id(n+1))
		if err != nil || !maps.Equal(got.Config.Labels, row.count) {
			t.Errorf("%s, given %v: %v, %v", row.image, row.given, got.Config.Labels, err)
		}
	}
}

func id(n int) string { return fmt.Sprintf("%064x", n) }

// runs makes a description of a container with an address.
func runs(n int, name, addr string, pid int) map[string]any {
	return map[string]any{
		"Id": id(n), "Name": "/" + name, "State": map[string]any{"Running": true, "Pid": pid, "StartedAt": fmt.Sprint(n)},
		"Image":           "sha256:plain",
		"Config":          map[string]any{"Image": "i", "Labels": map[string]string{"team": name}},
		"NetworkSettings": map[string]any{"Networks": map[string]any{"n": map[string]string{"IPAddress": addr, "GlobalIPv6Address": ""}}},
	}
}

func (f *fakeEngine) set(n int, d map[string]any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d == nil {
		delete(f.running, id(n))
	} else {
		f.running[id(n)] = d
	}
}

func happens(kind, action string, n int) map[string]any {
	return map[string]any{"Type": kind, "Action": action, "Actor": map[string]any{"ID": id(n), "Attributes": map[string]string{"container": id(n)}}}
}

// watch starts to watch a fake engine. What ends is sent to ended.
func watch(t *testing.T, f *fakeEngine) (c *Engine, ended chan *policy.Container, health chan error) {
	t.Helper()
	if f.running == nil {
		f.running = map[string]map[string]any{}
	}
	f.events = make(chan map[string]any)
	path := filepath.Join(t.TempDir(), "docker.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: f}
	go server.Serve(l)
	c = New(path)
	ended, health = make(chan *policy.Container, 16), make(chan error, 16)
	c.Started, c.Ended, c.Health = func(*sandbox.Container) {}, func(k *policy.Container) { ended <- k }, func(err error) { health <- err }
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Watch(ctx) }()
	t.Cleanup(func() { stop(); server.Close(); <-done })
	if err := <-health; err != nil {
		t.Fatal(err)
	}
	return c, ended, health
}

// is waits until an address is that of a container with a name, or of none.
func is(t *testing.T, c *Engine, addr, name string) *sandbox.Container {
	t.Helper()
	var k *sandbox.Container
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if k, _ = c.At(netip.MustParseAddr(addr)); (k == nil) == (name == "") && (k == nil || k.Name == name) {
			return k
		}
	}
	t.Fatalf("%s is that of %+v, not of %q", addr, k, name)
	return nil
}

// settled waits until nothing is asked.
func settled(c *Engine) {
	for asking := 1; asking > 0; time.Sleep(time.Millisecond) {
		c.mu.RLock()
		asking = len(c.looking)
		c.mu.RUnlock()
	}
}

func TestContainersAsTheyComeAndGo(t *testing.T) {
	f := &fakeEngine{running: map[string]map[string]any{id(1): runs(1, "one", "10.1.0.2", 0)}}
	c, ended, _ := watch(t, f)
	one := is(t, c, "10.1.0.2", "one")
	if got := is(t, c, "::ffff:10.1.0.2", "one"); got != one {
		t.Error("an IPv4 address in IPv6 clothes is another's")
	}
	f.set(1, nil)
	f.events <- happens("container", "die", 1)
	is(t, c, "10.1.0.2", "")
	if k := <-ended; k != one.Container {
		t.Errorf("%+v has ended", k)
	}
	f.set(2, runs(2, "two", "10.1.0.2", 0))
	f.events <- happens("container", "start", 2)
	two := is(t, c, "10.1.0.2", "two")
	f.set(2, runs(2, "two", "10.1.0.3", 0))
	f.events <- happens("network", "disconnect", 2)
	is(t, c, "10.1.0.2", "")
	if k := <-ended; k != two.Container || is(t, c, "10.1.0.3", "two").Container == two.Container {
		t.Error("what left its place is the same still")
	}
	f.set(3, runs(3, "three", "10.1.0.3", 0))
	f.events <- happens("container", "start", 3)
	is(t, c, "10.1.0.3", "") // of two, and thus of none
	for addr, want := range map[string]bool{"10.1.0.9": true, "10.1.0.1": false, "10.2.0.9": false, "192.0.2.1": false, "127.0.0.1": false, "::1": false} {
		if _, expected := c.At(netip.MustParseAddr(addr)); expected != want {
			t.Errorf("%s is expected: %v", addr, !want)
		}
	}
}

// TestAnEndCountsWhileItIsAsked has a container end while the engine is about to say that
// it runs.
func TestAnEndCountsWhileItIsAsked(t *testing.T) {
	f := &fakeEngine{asked: make(chan string, 16)}
	c, _, _ := watch(t, f)
	f.mu.Lock()
	f.running[id(1)], f.hold = runs(1, "one", "10.1.0.2", 0), make(chan struct{})
	f.mu.Unlock()
	f.events <- happens("container", "start", 1)
	<-f.asked // the answer that is held says that it runs
	f.set(1, nil)
	f.events <- happens("container", "die", 1)
	for heard := false; !heard; time.Sleep(time.Millisecond) {
		c.mu.RLock()
		heard = c.looking[id(1)] != nil && c.looking[id(1)].again
		c.mu.RUnlock()
	}
	close(f.hold)
	select {
	case <-f.asked: // once more
	case <-time.After(20 * time.Second):
		t.Fatal("it is not asked once more")
	}
	settled(c)
	is(t, c, "10.1.0.2", "")
}

// TestAnEndCountsBeforeItIsSaid has the first process of a container end, of which the engine says
// nothing.
func TestAnEndCountsBeforeItIsSaid(t *testing.T) {
	first := exec.Command("sleep", "1000")
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := pidfd.Open(first.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	c := New("/nowhere")
	var gone sync.WaitGroup
	gone.Add(1)
	c.Ended = func(*policy.Container) { gone.Done() }
	addr := netip.MustParseAddr("10.1.0.2")
	c.change(func() []*known {
		c.trouble = nil
		c.add(&known{Container: &sandbox.Container{Container: &policy.Container{ID: id(1), Name: "one"}}, addrs: []netip.Addr{addr}, process: p})
		return nil
	})
	if k, _ := c.At(addr); k == nil {
		t.Fatal("it is not there")
	}
	first.Process.Kill()
	first.Process.Wait()
	if k, _ := c.At(addr); k != nil {
		t.Fatal("it is there after its end")
	}
	gone.Wait()
}

// TestWithoutAnEngineNobodyIsKnown, and who was is the same afterwards.
func TestWithoutAnEngineNobodyIsKnown(t *testing.T) {
	f := &fakeEngine{running: map[string]map[string]any{id(1): runs(1, "one", "10.1.0.2", 0), id(2): runs(2, "two", "10.1.0.3", 0)}}
	c, ended, _ := watch(t, f)
	one, two := is(t, c, "10.1.0.2", "one"), is(t, c, "10.1.0.3", "two")
	c.lose(os.ErrDeadlineExceeded)
	if k, expected := c.At(netip.MustParseAddr("10.1.0.2")); k != nil || !expected || c.Trouble() == nil {
		t.Errorf("%+v, %v", k, expected)
	}
	began := time.Now()
	c.Await(t.Context(), netip.MustParseAddr("10.1.0.2"))
	if took := time.Since(began); took >= expectedFor {
		t.Errorf("waited %v for an engine that cannot be asked", took)
	}
	f.set(2, nil)
	if err := c.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.change(func() []*known { c.trouble = nil; return nil })
	if again := is(t, c, "10.1.0.2", "one"); again.Container != one.Container {
		t.Error("what runs on is another container")
	}
	if k := <-ended; k != two.Container {
		t.Errorf("%+v has ended", k)
	}
}

// TestAGroupThatLooksLikeAContainers is none.
func TestAGroupThatLooksLikeAContainers(t *testing.T) {
	a, b := id(1), id(2)
	v2 := []string{"0::/system.slice/docker-" + a + ".scope"}
	v1 := []string{"12:cpu,cpuacct:/docker/" + a, "3:memory:/docker/" + a, "1:name=systemd:/docker/" + a, "0::/"}
	for _, row := range []struct {
		says          string
		groups, first []string
		want          bool
	}{
		{"the first process", v2, v2, true},
		{"one in a group below", []string{v2[0] + "/init.scope"}, v2, true},
		{"in version 1", v1, v1, true},
		{"of one hierarchy alone", []string{v1[0], "3:memory:/", "1:name=systemd:/", "0::/"}, v1, false},
		{"a user's own slice", []string{"0::/user.slice/user-1000.slice/user@1000.service/docker-" + a + ".scope"}, v2, false},
		{"a name that goes on", []string{v2[0] + "x"}, v2, false},
		{"another container", []string{"0::/system.slice/docker-" + b + ".scope"}, v2, false},
		{"another that is named after it", []string{"0::/docker/" + b + "/" + a}, v2, false},
		{"nothing is known of the first process", v2, nil, false},
		{"the first process is in no group of its own", v2, []string{"0::/"}, false},
		{"nobody", nil, v2, false},
	} {
		if within(row.groups, row.first, a) != row.want {
			t.Errorf("%s: %v", row.says, !row.want)
		}
	}
	for _, row := range []struct {
		groups []string
		want   string
	}{
		{v2, a}, {[]string{"0::/docker/" + a}, a}, {[]string{"0::/machine.slice/libpod-" + a + ".scope/container"}, a},
		{[]string{"0::/../" + a}, a}, {[]string{"0::/docker/" + a[:63]}, ""}, {[]string{"0::/docker/" + strings.ToUpper(strings.Replace(a, "1", "a", 1))}, ""}, {nil, ""},
	} {
		if got := containerIDs(row.groups); strings.Join(got, " ") != row.want {
			t.Errorf("%q names %q, not %q", row.groups, got, row.want)
		}
	}
}

// TestAnswersOfTheEngine are hostile.
func TestAnswersOfTheEngine(t *testing.T) {
	for name, d := range map[string]map[string]any{
		"another's":   {"Id": id(2), "State": map[string]any{"Running": true}, "NetworkSettings": map[string]any{"Networks": map[string]any{"n": map[string]string{"IPAddress": "10.1.0.2"}}}},
		"has stopped": {"Id": id(1), "State": map[string]any{"Running": false}, "NetworkSettings": map[string]any{"Networks": map[string]any{"n": map[string]string{"IPAddress": "10.1.0.2"}}}},
		"no address":  {"Id": id(1), "State": map[string]any{"Running": true}, "NetworkSettings": map[string]any{"Networks": map[string]any{"n": map[string]string{"IPAddress": "10.1.0.256"}}}},
		"everywhere":  {"Id": id(1), "State": map[string]any{"Running": true}, "NetworkSettings": map[string]any{"Networks": map[string]any{"n": map[string]string{"IPAddress": "0.0.0.0"}}}},
	} {
		f := &fakeEngine{running: map[string]map[string]any{id(1): d}, asked: make(chan string, 16)}
		c, _, _ := watch(t, f)
		<-f.asked
		f.set(3, runs(3, "three", "10.1.0.3", 0))
		f.events <- happens("container", "start", 3)
		is(t, c, "10.1.0.3", "three")
		settled(c)
		if k, _ := c.At(netip.MustParseAddr("10.1.0.2")); k != nil {
			t.Errorf("%s: it is %+v", name, k)
		}
		if k, _ := c.At(netip.IPv4Unspecified()); k != nil {
			t.Errorf("%s: %+v is everywhere", name, k)
		}
	}
}
