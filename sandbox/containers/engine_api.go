package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// An engineAPI asks the Docker API at a Unix socket. It is safe for concurrent use. It uses no version prefix:
// every version since 1.24 has the paths that egressd asks for.
type engineAPI struct{ client *http.Client }

const (
	dockerPatience = 10 * time.Second
	dockerBytes    = 32 << 20 // of an answer: a thousand containers with long labels
)

func newEngineAPI(socket string) *engineAPI {
	return &engineAPI{&http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			d := net.Dialer{Timeout: dockerPatience}
			return d.DialContext(ctx, "unix", socket)
		},
		MaxIdleConns: 4, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: dockerPatience,
	}}}
}

// An answerError is an HTTP answer with another status than 200.
type answerError struct {
	status  int
	message string
}

func (e *answerError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("Docker answers %d %s %.200q", e.status, http.StatusText(e.status), e.message))
}

func (e *engineAPI) get(ctx context.Context, path string, what any) error {
	ctx, cancel := context.WithTimeout(ctx, dockerPatience)
	defer cancel()
	body, err := e.stream(ctx, path)
	if err != nil {
		return err
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, dockerBytes))
	if err != nil || what == nil {
		return err
	}
	if err := json.Unmarshal(text, what); err != nil {
		return fmt.Errorf("the engine answers what cannot be read: %w", err)
	}
	return nil
}

// stream returns the body of the answer for a path. The caller closes it.
func (e *engineAPI) stream(ctx context.Context, path string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker"+path, nil)
	if err != nil {
		return nil, err
	}
	answer, err := e.client.Do(r)
	if err != nil {
		return nil, withoutURL(err)
	}
	if answer.StatusCode == http.StatusOK {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	var said struct{ Message string }
	_ = json.NewDecoder(io.LimitReader(answer.Body, 4<<10)).Decode(&said)
	return nil, &answerError{answer.StatusCode, said.Message}
}

// withoutURL removes the URL from an error, because the URL only names the socket.
func withoutURL(err error) error {
	if at, ok := errors.AsType[*url.Error](err); ok {
		return at.Err
	}
	return err
}

func (e *engineAPI) close() { e.client.CloseIdleConnections() }

// A description is the engine's description of a container.
type description struct {
	ID    string `json:"Id"`
	Name  string
	State struct {
		Running   bool
		Status    string
		Pid       int
		StartedAt string
	}
	Image  string // ID
	Config struct {
		Image  string
		Labels map[string]string
	}
	NetworkSettings struct {
		Networks map[string]struct{ IPAddress, GlobalIPv6Address string }
	}
}

// describe returns a container by its ID, its name, or the beginning of its ID. name is a [sandbox.PlainName]. Its labels are
// those that it was given.
func (e *engineAPI) describe(ctx context.Context, name string) (*description, error) {
	d := new(description)
	if err := e.get(ctx, "/containers/"+name+"/json", d); err != nil {
		return nil, err
	}
	var err error
	d.Config.Labels, err = e.given(ctx, d)
	return d, err
}

// given returns the labels that somebody gave the container, without those of its image: whoever builds an image does not
// choose the sandbox. A label that both have with the same value counts as the image's.
//
// Compose labels the images that it builds, and gives their containers more labels. If the container has a label of Compose that
// its image does not have, all labels of Compose count.
func (e *engineAPI) given(ctx context.Context, d *description) (labels map[string]string, err error) {
	if len(d.Config.Labels) == 0 {
		return nil, nil
	}
	var image struct {
		Config struct{ Labels map[string]string }
	}
	switch err := e.get(ctx, "/images/"+url.PathEscape(d.Image)+"/json", &image); {
	case isMissing(err): // nobody can tell any more
		return nil, nil
	case err != nil:
		return nil, err
	}
	labels, byCompose := maps.Clone(d.Config.Labels), false
	for name, value := range d.Config.Labels {
		if is, has := image.Config.Labels[name]; has && is == value {
			delete(labels, name)
		} else if strings.HasPrefix(name, composeLabels) {
			byCompose = true
		}
	}
	for name, value := range d.Config.Labels {
		if byCompose && strings.HasPrefix(name, composeLabels) {
			labels[name] = value
		}
	}
	return labels, nil
}

// composeLabels begins the names of Compose's labels.
const composeLabels = "com.docker.compose."
