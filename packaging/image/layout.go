package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// Media types of the OCI image specification.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar"
)

// An image is its configuration: how a container of it starts.
type image struct {
	Created      string        `json:"created"`
	Architecture string        `json:"architecture"`
	OS           string        `json:"os"`
	Config       startup       `json:"config"`
	RootFS       rootFS        `json:"rootfs"`
	History      []historyLine `json:"history"`
}

type startup struct {
	User       string              `json:"User"`
	Env        []string            `json:"Env"`
	Entrypoint []string            `json:"Entrypoint"`
	Cmd        []string            `json:"Cmd"`
	WorkingDir string              `json:"WorkingDir"`
	Volumes    map[string]struct{} `json:"Volumes"`
	Labels     map[string]string   `json:"Labels"`
	StopSignal string              `json:"StopSignal"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type historyLine struct {
	Created   string `json:"created"`
	CreatedBy string `json:"created_by"`
}

// A descriptor points to a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// A manifest is one of the OCI's, or an index of them.
type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        *descriptor  `json:"config,omitempty"`
	Layers        []descriptor `json:"layers,omitempty"`
	Manifests     []descriptor `json:"manifests,omitempty"`
}

// A dockerManifest is what docker load looks for (manifest.json).
type dockerManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// blobs are the parts of an image, each under its digest.
type blobs struct{ entries []archiveFile }

func (b *blobs) add(kind string, text []byte) descriptor {
	sum := sha256.Sum256(text)
	digest := hex.EncodeToString(sum[:])
	b.entries = append(b.entries, archiveFile{pathOf(digest), 0o644, 0, text})
	return descriptor{MediaType: kind, Digest: "sha256:" + digest, Size: len(text)}
}

func (b *blobs) addJSON(kind string, v any) (descriptor, error) {
	text, err := json.Marshal(v)
	return b.add(kind, text), err
}

func pathOf(digest string) string { return "blobs/sha256/" + digest }

// build returns the archive of an image that starts a binary.
func build(binary []byte, arch, tag string) ([]byte, error) {
	text, err := archive(layer(binary))
	if err != nil {
		return nil, err
	}
	var b blobs
	files := b.add(typeLayer, text)
	config, err := b.addJSON(typeConfig, configOf(arch, files.Digest))
	if err != nil {
		return nil, err
	}
	whole, err := b.addJSON(typeManifest, manifest{SchemaVersion: 2, MediaType: typeManifest, Config: &config, Layers: []descriptor{files}})
	if err != nil {
		return nil, err
	}
	whole.Platform = &platform{arch, "linux"}
	whole.Annotations = map[string]string{"io.containerd.image.name": "docker.io/library/" + tag, "org.opencontainers.image.ref.name": tag}
	index, err := json.Marshal(manifest{SchemaVersion: 2, MediaType: typeIndex, Manifests: []descriptor{whole}})
	if err != nil {
		return nil, err
	}
	docker, err := json.Marshal([]dockerManifest{{pathOf(config.Digest[len("sha256:"):]), []string{tag}, []string{pathOf(files.Digest[len("sha256:"):])}}})
	if err != nil {
		return nil, err
	}
	folders := []archiveFile{{"blobs/", 0o755, 0, nil}, {"blobs/sha256/", 0o755, 0, nil}}
	return archive(append(append(folders, b.entries...),
		archiveFile{"index.json", 0o644, 0, index},
		archiveFile{"manifest.json", 0o644, 0, docker},
		archiveFile{"oci-layout", 0o644, 0, []byte(`{"imageLayoutVersion":"1.0.0"}`)}))
}

// configOf has egressd serve the policy that is mounted at
// /etc/egressd/egressd.yaml, and keep its log in a volume.
func configOf(arch, layer string) image {
	then := epoch.UTC().Format("2006-01-02T15:04:05Z")
	return image{
		Created: then, Architecture: arch, OS: "linux",
		Config: startup{
			User: "65532:65532", WorkingDir: "/",
			Env:        []string{"PATH=/usr/bin", "XDG_STATE_HOME=/var/lib"},
			Entrypoint: []string{"/usr/bin/egressd"}, Cmd: []string{"serve"},
			Volumes:    map[string]struct{}{"/var/lib/egressd": {}},
			Labels:     map[string]string{"org.opencontainers.image.title": "egressd", "org.opencontainers.image.licenses": license},
			StopSignal: "SIGTERM",
		},
		RootFS:  rootFS{"layers", []string{layer}},
		History: []historyLine{{then, "egressd packaging/image"}},
	}
}

const license = "Apache-2.0"
