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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/internal/hint"
)

// A Front is an HTTP handler that stands in front of a container engine, for one command of docker(1). It passes
// every request on. A container that the client creates is changed, looked at, and removed if it is refused. So
// docker reads its own flags, and egressd judges what the engine has made of them.
type Front struct {
	Engine string // path of the engine's socket

	// Change changes the body of a request to create a container, with the engine's description of the image.
	// An error ends the request. Nil changes nothing.
	Change func(create map[string]any, image ImageConfig) error
	// Doors are the sources of mounts that Change adds.
	Doors []string
	// Judge returns why a container is refused. The front calls it after the create, before each start, and after the
	// start, if the kernel tells what is mounted. inspect asks the engine about another container.
	Judge func(s *Sight, inspect func(id string) (*Sight, error)) error

	// Pauses reports whether a running sandbox stands still while the engine builds images for the client. A program in the
	// sandbox could replace a file of the build context by a link to a file of this machine, which the client would put into the image.
	// The sandbox goes on before the client next changes a container, and when the front ends. Nil: none stands still.
	Pauses func(n boundary.Neighbour, volumes map[string]boundary.Volume) bool

	// Image returns why the labels of an image are refused that docker(1) inspects; found is false if the engine does not have the image.
	// After an error the front refuses all that changes anything, since the client may go on without the image. Nil takes all images.
	Image func(name string, labels map[string]string, found bool) error

	asked   atomic.Bool
	over    atomic.Bool // Image has refused one
	mu      sync.Mutex  // guards what follows
	refused []Refused

	pausing sync.Mutex // guards what follows
	paused  []string   // names of containers
}

// A Refused container is one that a front has refused, and why. Sight is nil if there was no container yet.
type Refused struct {
	Sight *Sight
	Err   error
}

// Asked reports whether any client has sent a request. A docker that is another program may ask no socket.
func (f *Front) Asked() bool { return f.asked.Load() }

// An ImageConfig says what an image starts.
type ImageConfig struct {
	Entrypoint, Cmd []string
	User            string
	Healthcheck     *struct{ Test []string }
}

// Refused returns the containers that were refused, in their order.
func (f *Front) Refused() []Refused {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.refused)
}

// createBytes bounds a request to create a container.
const createBytes = 4 << 20

var (
	creates = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(/v[0-9.]+)?/containers/create$`) })
	builds  = sync.OnceValue(func() *regexp.Regexp { // by the engine, or by a builder of buildx that is a container
		return regexp.MustCompile(`^(/v[0-9.]+)?/(?:build|session|grpc|containers/buildx_buildkit_[^/]+/exec)$`)
	})
	changes = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(/v[0-9.]+)?/containers/`) })
	images  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(/v[0-9.]+)?/images/(.+)/json$`) })
	starts  = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(/v[0-9.]+)?/containers/([^/]+)/(?:start|restart)$`)
	})
)

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
		at := path.Clean(r.URL.Path)
		inspected := images().FindStringSubmatch(at)
		switch {
		case r.Method == http.MethodGet && f.Image != nil && inspected != nil && strings.HasPrefix(r.UserAgent(), dockersAgent):
			f.image(w, r, through, inspected[2])
			return
		case r.Method == http.MethodGet || r.Method == http.MethodHead:
		case f.over.Load():
			answerMessage(w, http.StatusForbidden, "egressd has refused an image")
			return
		case builds().MatchString(at):
			if err := f.pause(r.Context(), api); err != nil {
				f.refuse(w, nil, err)
				return
			}
		case changes().MatchString(at):
			f.resume(api)
		}
		if version := creates().FindStringSubmatch(at); version != nil && r.Method == http.MethodPost {
			f.create(w, r, through, api, version[1])
		} else if starts := starts().FindStringSubmatch(at); starts != nil && r.Method == http.MethodPost {
			f.start(w, r, through, api, url.PathEscape(starts[2]))
		} else {
			through.ServeHTTP(w, r)
		}
	})}
	defer f.resume(api)
	return s.Serve(l)
}

// dockersAgent begins the User-Agent of docker(1). Compose and buildx have others.
const dockersAgent = "Docker-Client/"

// image passes the engine's account of an image on, unless Image refuses it.
func (f *Front) image(w http.ResponseWriter, r *http.Request, through http.Handler, name string) {
	answer := &heldAnswer{header: http.Header{}, status: http.StatusOK}
	through.ServeHTTP(answer, r)
	var is struct {
		Config struct{ Labels map[string]string }
	}
	var err error
	if answer.status == http.StatusOK {
		err = json.Unmarshal(answer.body.Bytes(), &is)
	}
	if err == nil && (answer.status == http.StatusOK || answer.status == http.StatusNotFound) {
		err = f.Image(name, is.Config.Labels, answer.status == http.StatusOK)
	}
	if err != nil {
		f.over.Store(true)
		f.refuse(w, nil, err)
		return
	}
	answer.to(w)
}

// pause has sandboxes stand still that Pauses names.
func (f *Front) pause(ctx context.Context, api *engineAPI) error {
	if f.Pauses == nil {
		return nil
	}
	f.pausing.Lock()
	defer f.pausing.Unlock()
	s := &Sight{Volumes: make(map[string]boundary.Volume)}
	if err := api.beside(ctx, s); err != nil {
		return fmt.Errorf("ask the engine for containers that run: %w", err)
	}
	for _, n := range s.Neighbours {
		if slices.Contains(f.paused, n.Name) || !f.Pauses(n, s.Volumes) {
			continue
		}
		if err := api.change(http.MethodPost, "/containers/"+n.Name+"/pause", ""); err != nil && !isMissing(err) {
			return hint.Failed(fmt.Errorf("the container %s can write what an image is to be built of, and the engine does not pause it: %w", n.Name, err), "docker stop "+n.Name+", and this once more")
		}
		f.paused = append(f.paused, n.Name)
	}
	return nil
}

// resume has the sandboxes go on.
func (f *Front) resume(api *engineAPI) {
	f.pausing.Lock()
	defer f.pausing.Unlock()
	for _, name := range f.paused {
		_ = api.change(http.MethodPost, "/containers/"+name+"/unpause", "") // it may have ended
	}
	f.paused = nil
}

func answerMessage(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(struct {
		Message string `json:"message"`
	}{message})
}

func (f *Front) refuse(w http.ResponseWriter, s *Sight, err error) {
	f.mu.Lock()
	f.refused = append(f.refused, Refused{s, err})
	f.mu.Unlock()
	answerMessage(w, http.StatusForbidden, "egressd refuses this container")
}

// create has the engine create a container, and answers once it was judged.
func (f *Front) create(w http.ResponseWriter, r *http.Request, through http.Handler, api *engineAPI, version string) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, createBytes))
	if err == nil && f.Change != nil {
		text, err = f.changed(r.Context(), api, version, text)
	}
	if err != nil {
		f.refuse(w, nil, err)
		return
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	answer := &heldAnswer{header: http.Header{}, status: http.StatusOK}
	through.ServeHTTP(answer, r)
	var made struct{ ID string }
	if answer.status == http.StatusCreated && json.Unmarshal(answer.body.Bytes(), &made) == nil && isContainerID(made.ID) {
		if s, err := f.look(r.Context(), api, made.ID); err != nil {
			f.refuse(w, s, errors.Join(err, api.remove(made.ID)))
			return
		}
	}
	answer.to(w)
}

// changed is the body of a request to create a container, as Change makes it.
func (f *Front) changed(ctx context.Context, api *engineAPI, version string, text []byte) ([]byte, error) {
	var body map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&body); err != nil {
		return nil, fmt.Errorf("what docker asks for cannot be read: %w", err)
	}
	var image struct{ Config ImageConfig }
	name, _ := body["Image"].(string)
	err := api.get(ctx, version+"/images/"+name+"/json", &image)
	if isMissing(err) { // the engine says so, and docker pulls it
		return text, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask the engine for the image %s: %w", name, err)
	}
	if err := f.Change(body, image.Config); err != nil {
		return nil, err
	}
	return json.Marshal(body)
}

// start judges a container again, and has the engine start it. A client may have connected networks since the create, or
// start a container of an earlier day. Afterwards the kernel says what is mounted.
func (f *Front) start(w http.ResponseWriter, r *http.Request, through http.Handler, api *engineAPI, name string) {
	if s, err := f.look(r.Context(), api, name); err != nil && !isMissing(err) {
		f.refuse(w, s, err)
		return
	}
	answer := &heldAnswer{header: http.Header{}, status: http.StatusOK}
	through.ServeHTTP(answer, r)
	if answer.status == http.StatusNoContent {
		if s, err := f.lookInside(r.Context(), api, name); err != nil {
			f.refuse(w, s, errors.Join(err, api.kill(name)))
			return
		}
	}
	answer.to(w)
}

// look judges a container. s is nil if the engine does not say what it is.
func (f *Front) look(ctx context.Context, api *engineAPI, name string) (s *Sight, err error) {
	if s, err = api.inspect(ctx, name); err != nil {
		return nil, fmt.Errorf("ask the engine for the container %s: %w", name, err)
	}
	return s, f.Judge(s, func(id string) (*Sight, error) { return api.inspect(ctx, id) })
}

// lookInside judges a container that has started by what the kernel has mounted in it, as far as this user may know.
func (f *Front) lookInside(ctx context.Context, api *engineAPI, name string) (s *Sight, err error) {
	s, err = api.inspect(ctx, name)
	if isMissing(err) {
		return nil, nil // it has ended
	}
	var is struct {
		ID    string `json:"Id"`
		State struct{ Pid int }
	}
	if err == nil {
		err = s.Container.Into(&is)
	}
	if err != nil {
		return s, fmt.Errorf("ask the engine for the container that it has started: %w", err)
	}
	process := openFirst(is.State.Pid, is.ID)
	if process == nil {
		return s, nil
	}
	defer process.Close()
	s.Container = AsMounted(s.Container, is.State.Pid, f.Doors)
	if process.Ended() {
		return s, nil
	}
	return s, f.Judge(s, func(id string) (*Sight, error) { return api.inspect(ctx, id) })
}

func isMissing(err error) bool {
	answer, ok := errors.AsType[*answerError](err)
	return ok && answer.status == http.StatusNotFound
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

// remove removes a container that was not started, with the volumes that it alone has.
func (e *engineAPI) remove(id string) error {
	return e.change(http.MethodDelete, "/containers/"+id+"?force=1&v=1", "")
}

// kill ends a container, and its restart policy: by always, the engine would start it when it starts itself.
func (e *engineAPI) kill(name string) error {
	return errors.Join(e.change(http.MethodPost, "/containers/"+name+"/update", `{"RestartPolicy": {"Name": "no"}}`), e.change(http.MethodPost, "/containers/"+name+"/kill", ""))
}

// change asks the engine to change a container. It counts for clients that have left, too.
func (e *engineAPI) change(method, path, body string) error {
	ctx, cancel := context.WithTimeout(context.Background(), dockerPatience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := e.client.Do(r)
	if err != nil {
		return withoutURL(err)
	}
	answer.Body.Close()
	if answer.StatusCode/100 != 2 && answer.StatusCode != http.StatusConflict { // a conflict: it has ended by itself
		return &answerError{answer.StatusCode, path}
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
