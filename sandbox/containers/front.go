package containers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/integrations/boundary"
)

// A Front is an HTTP handler that stands in front of a container engine, for one command of docker(1). It passes
// every request on. A container that the client creates is changed, looked at, and removed if it is refused. So
// docker reads its own flags, and egressd judges what the engine has made of them.
type Front struct {
	Engine string // path of the engine's socket

	// Change changes the body of a request to create a container, with the engine's description of the image.
	// An error ends the request.
	Change func(create map[string]any, image ImageConfig) error
	// Judge returns why a created container is refused, before it starts.
	Judge func(boundary.Description, map[string]boundary.Volume) error

	asked   atomic.Bool
	mu      sync.Mutex // guards what follows
	refused error
}

// Asked reports whether any client has sent a request. A docker that is another program may ask no socket.
func (f *Front) Asked() bool { return f.asked.Load() }

// An ImageConfig says what an image starts.
type ImageConfig struct {
	Entrypoint, Cmd []string
	User            string
	Healthcheck     *struct{ Test []string }
}

// Refused returns why the last container was refused, or nil.
func (f *Front) Refused() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refused
}

// createBytes bounds a request to create a container.
const createBytes = 4 << 20

var creates = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(/v[0-9.]+)?/containers/create$`) })

// Serve serves l until it is closed.
func (f *Front) Serve(l net.Listener) error {
	api := newEngineAPI(f.Engine)
	defer api.close()
	through := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: "docker"})
		},
		Transport:     api.client.Transport.(*http.Transport).Clone(),
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			answerMessage(w, http.StatusBadGateway, withoutURL(err).Error())
		},
	}
	through.Transport.(*http.Transport).ResponseHeaderTimeout = 0 // a pull takes as long as it takes
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.asked.Store(true)
		if version := creates().FindStringSubmatch(path.Clean(r.URL.Path)); version != nil && r.Method == http.MethodPost {
			f.create(w, r, through, api, version[1])
			return
		}
		through.ServeHTTP(w, r)
	})}
	return s.Serve(l)
}

func answerMessage(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(struct {
		Message string `json:"message"`
	}{message})
}

func (f *Front) refuse(w http.ResponseWriter, err error) {
	f.mu.Lock()
	f.refused = err
	f.mu.Unlock()
	answerMessage(w, http.StatusForbidden, "egressd refuses this container")
}

// create has the engine create a container, and answers once it was judged.
func (f *Front) create(w http.ResponseWriter, r *http.Request, through http.Handler, api *engineAPI, version string) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, createBytes))
	var body map[string]any
	if err == nil {
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		err = decoder.Decode(&body)
	}
	if err != nil {
		f.refuse(w, fmt.Errorf("what docker asks for cannot be read: %w", err))
		return
	}
	var image struct{ Config ImageConfig }
	name, _ := body["Image"].(string)
	switch err := api.get(r.Context(), version+"/images/"+name+"/json", &image); {
	case isMissing(err): // the engine says so, and docker pulls it
	case err != nil:
		f.refuse(w, fmt.Errorf("ask the engine for the image %s: %w", name, err))
		return
	default:
		if err := f.Change(body, image.Config); err != nil {
			f.refuse(w, err)
			return
		}
		if text, err = json.Marshal(body); err != nil {
			f.refuse(w, err)
			return
		}
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	answer := &heldAnswer{header: http.Header{}, status: http.StatusOK}
	through.ServeHTTP(answer, r)
	var made struct{ ID string }
	if answer.status == http.StatusCreated && json.Unmarshal(answer.body.Bytes(), &made) == nil && isContainerID(made.ID) {
		if err := f.look(r.Context(), api, made.ID); err != nil {
			f.refuse(w, errors.Join(err, api.remove(made.ID)))
			return
		}
	}
	answer.to(w)
}

// look judges a container that does not run yet.
func (f *Front) look(ctx context.Context, api *engineAPI, id string) error {
	d, volumes, err := api.inspect(ctx, id)
	if err != nil {
		return fmt.Errorf("ask the engine for the container that it has created: %w", err)
	}
	return f.Judge(d, volumes)
}

func isMissing(err error) bool {
	answer, ok := errors.AsType[*answerError](err)
	return ok && answer.status == http.StatusNotFound
}

// Inspect returns what the engine at a socket says of a container, and of its volumes.
func Inspect(ctx context.Context, socket, name string) (boundary.Description, map[string]boundary.Volume, error) {
	api := newEngineAPI(socket)
	defer api.close()
	return api.inspect(ctx, name)
}

// aboutPatience is how long an engine may take to say it; a client that attaches its network waits meanwhile.
const aboutPatience = 2 * time.Second

// About returns the folder in which the engine at a socket keeps containers, images and volumes, and whether the engine is loose
// (boundary.Machine). It returns nothing if the engine does not say.
func About(socket string) (folders []string, loose bool) {
	ctx, cancel := context.WithTimeout(context.Background(), aboutPatience)
	defer cancel()
	api := newEngineAPI(socket)
	defer api.close()
	var is struct {
		DockerRootDir   string
		SecurityOptions []string
		BuildahVersion  string // of Podman
	}
	if api.get(ctx, "/info", &is) != nil || !path.IsAbs(is.DockerRootDir) {
		return nil, false
	}
	return []string{is.DockerRootDir}, boundary.IsLoose(is.SecurityOptions, is.BuildahVersion != "")
}

func (e *engineAPI) inspect(ctx context.Context, name string) (d boundary.Description, volumes map[string]boundary.Volume, err error) {
	if err := e.get(ctx, "/containers/"+name+"/json", &d); err != nil {
		return nil, nil, err
	}
	volumes = make(map[string]boundary.Volume)
	mounts, _ := d["Mounts"].([]any)
	for _, m := range mounts {
		fields, _ := m.(map[string]any)
		name, _ := fields["Name"].(string)
		if fields["Type"] != "volume" || name == "" {
			continue
		}
		var v struct {
			Driver  string
			Options map[string]string
		}
		if err := e.get(ctx, "/volumes/"+url.PathEscape(name), &v); err != nil {
			return nil, nil, err
		}
		volumes[name] = boundary.Volume{Driver: v.Driver, Options: v.Options}
	}
	return d, volumes, nil
}

// remove removes a container that was not started, with the volumes that it alone has. It counts for clients that
// have left, too.
func (e *engineAPI) remove(id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), dockerPatience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodDelete, "http://docker/containers/"+id+"?force=1&v=1", nil)
	if err != nil {
		return err
	}
	answer, err := e.client.Do(r)
	if err != nil {
		return withoutURL(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusNoContent {
		return &answerError{answer.StatusCode, strings.TrimSpace("container " + id)}
	}
	return nil
}

// A heldAnswer keeps an answer until it is known whether the client gets it.
type heldAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *heldAnswer) Header() http.Header         { return a.header }
func (a *heldAnswer) WriteHeader(status int)      { a.status = status }
func (a *heldAnswer) Write(b []byte) (int, error) { return a.body.Write(b) }

func (a *heldAnswer) to(w http.ResponseWriter) {
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes())
}
