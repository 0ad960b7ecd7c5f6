package containers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/egressd/egressd/integrations/boundary"
)

// TestSandboxesStandStillDuringABuild has a client build, and change a container. One sandbox writes in the project.
func TestSandboxesStandStillDuringABuild(t *testing.T) {
	for _, row := range []struct {
		says   string
		refuse string // what the engine does not do
		ask    []string
		order  []string
	}{
		{"a build of BuildKit, and a start", "", []string{"POST /grpc", "POST /session", "GET /v1.41/containers/json", "POST /v1.41/containers/x/stop", "POST /v1.41/containers/x/stop"},
			[]string{"POST /containers/writer/pause", "POST /grpc", "POST /session", "POST /containers/writer/unpause", "POST /v1.41/containers/x/stop", "POST /v1.41/containers/x/stop"}},
		{"two builds of the engine's own", "", []string{"POST /v1.41/build", "DELETE /v1.41/containers/x", "POST /v1.41//build"},
			[]string{"POST /containers/writer/pause", "POST /v1.41/build", "POST /containers/writer/unpause", "DELETE /v1.41/containers/x", "POST /containers/writer/pause", "POST /v1.41//build", "POST /containers/writer/unpause"}},
		{"a builder in a container", "", []string{"POST /v1.41/containers/buildx_buildkit_b0/exec", "POST /exec/1/start", "POST /containers/x/start"},
			[]string{"POST /containers/writer/pause", "POST /v1.41/containers/buildx_buildkit_b0/exec", "POST /exec/1/start", "POST /containers/writer/unpause", "POST /containers/x/start"}},
		{"a build to the end", "", []string{"POST /build"}, []string{"POST /containers/writer/pause", "POST /build", "POST /containers/writer/unpause"}},
		{"an engine that pauses nothing", "/containers/writer/pause", []string{"POST /build"}, []string{"POST /containers/writer/pause"}},
		{"no build", "", []string{"GET /info", "POST /networks/create"}, []string{"POST /networks/create"}},
	} {
		t.Run(row.says, func(t *testing.T) {
			var mu sync.Mutex
			var order []string
			engine := listenHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.Method != http.MethodGet:
					mu.Lock()
					order = append(order, r.Method+" "+r.URL.Path)
					mu.Unlock()
					if r.URL.Path == row.refuse {
						w.WriteHeader(http.StatusInternalServerError)
					}
				case r.URL.Path == "/networks":
					fmt.Fprint(w, `[{"Id": "1", "Name": "closed", "Internal": true}, {"Id": "2", "Name": "bridge"}]`)
				case r.URL.Path == "/containers/json":
					const in = `"NetworkSettings": {"Networks": {"n": {"NetworkID": "%d"}}}, "Mounts": [{"Type": "bind", "Source": "%s", "RW": %v}]`
					fmt.Fprintf(w, `[{"Id": "1", "Names": ["/writer"], `+in+`}, {"Id": "2", "Names": ["/reader"], `+in+`}, {"Id": "3", "Names": ["/elsewhere"], `+in+`}, {"Id": "4", "Names": ["/open"], `+in+`}]`,
						1, "/ws/a", true, 1, "/ws/a", false, 1, "/data", true, 2, "/ws", true)
				default:
					fmt.Fprint(w, `{}`)
				}
			}))
			dir := t.TempDir()
			l, err := net.Listen("unix", filepath.Join(dir, "s"))
			if err != nil {
				t.Fatal(err)
			}
			front := &Front{Engine: engine, Judge: func(*Sight, func(string) (*Sight, error)) error { return nil }, Pauses: func(n boundary.Neighbour, _ map[string]boundary.Volume) bool {
				return new(boundary.Machine).Writes("/ws", n.Mounts)
			}}
			served := make(chan struct{})
			go func() { _ = front.Serve(l); close(served) }()
			client := clientOf(l.Addr().String())
			for _, one := range row.ask {
				method, path, _ := strings.Cut(one, " ")
				r, err := http.NewRequestWithContext(t.Context(), method, "http://docker"+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				answer, err := client.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
			}
			l.Close()
			<-served
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(order, row.order) || (front.Refused() != nil) != (row.refuse != "") {
				t.Errorf("the engine was asked for %q; %v", order, front.Refused())
			}
		})
	}
}

// TestAnImageThatIsRefused has docker inspect images. After one that is refused, or that the engine does not have, nothing is changed.
func TestAnImageThatIsRefused(t *testing.T) {
	for _, row := range []struct {
		agent, image string
		passes       bool
	}{
		{"Docker-Client/28.2.2 (linux)", "fine:1", true}, {"Docker-Client/28.2.2 (linux)", "bad:1", false}, {"Docker-Client/28.2.2 (linux)", "example.com/none:1", false},
		{"compose/v2.40.3", "bad:1", true},
	} {
		var changed atomic.Int32
		engine := listenHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method != http.MethodGet:
				changed.Add(1)
			case r.URL.Path == "/v1.41/images/bad:1/json":
				fmt.Fprint(w, `{"Config": {"Labels": {"bad": "yes"}}}`)
			case r.URL.Path == "/v1.41/images/example.com/none:1/json":
				w.WriteHeader(http.StatusNotFound)
			default:
				fmt.Fprint(w, `{}`)
			}
		}))
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		front := &Front{Engine: engine, Image: func(name string, labels map[string]string, found bool) error {
			if !found || labels["bad"] != "" {
				return errors.New(name)
			}
			return nil
		}}
		served := make(chan struct{})
		go func() { _ = front.Serve(l); close(served) }()
		for _, one := range []string{"GET /v1.41/images/" + row.image + "/json", "POST /networks/create"} {
			method, path, _ := strings.Cut(one, " ")
			r, err := http.NewRequestWithContext(t.Context(), method, "http://docker"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("User-Agent", row.agent)
			answer, err := clientOf(l.Addr().String()).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			if (answer.StatusCode == http.StatusForbidden) == row.passes {
				t.Errorf("%+v: %s is answered %d", row, one, answer.StatusCode)
			}
		}
		l.Close()
		<-served
		if (changed.Load() == 1) != row.passes || (len(front.Refused()) == 0) != row.passes {
			t.Errorf("%+v: changed %d times, %v", row, changed.Load(), front.Refused())
		}
	}
}

func clientOf(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
}

// listenHTTP serves a handler at a Unix socket until the test ends.
func listenHTTP(t *testing.T, h http.Handler) (socket string) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "e"))
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return l.Addr().String()
}
