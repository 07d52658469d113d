{{- define "memtune.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $released := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $released .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{/* Selector labels, which are immutable. */}}
{{- define "memtune.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "memtune.labels" -}}
{{- include "memtune.labelsWith" (list . dict) -}}
{{- end -}}

{{/* All labels of an object, with those of its kind. Input: (list root own) */}}
{{- define "memtune.labelsWith" -}}
{{- $root := index . 0 -}}
{{- $fixed := include "memtune.fixedLabels" $root | fromYaml -}}
{{- merge dict $fixed (index . 1) $root.Values.labels | toYaml -}}
{{- end -}}

{{- define "memtune.fixedLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "memtune.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "memtune.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: give the account that the operator runs as, or set serviceAccount.create" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* An image reference by digest, or else by tag, or else by the chart's appVersion. Input: (list root image) */}}
{{- define "memtune.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default $root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The watched namespaces, separated by commas; empty for the whole cluster. */}}
{{- define "memtune.namespaces" -}}
{{- if eq .Values.rbac.scope "namespaces" -}}
{{- join "," (default (list .Release.Namespace) .Values.rbac.namespaces) -}}
{{- end -}}
{{- end -}}

{{/* The namespace of the test job: one that is watched and allowed. */}}
{{- define "memtune.testNamespace" -}}
{{- $allowed := .Values.policy.allowedNamespaces -}}
{{- $watched := include "memtune.namespaces" . | splitList "," | compact | default (list .Release.Namespace) -}}
{{- $both := list -}}
{{- range $watched -}}
{{- if and (or (not $allowed) (has . $allowed)) (not (has . $.Values.policy.deniedNamespaces)) -}}
{{- $both = append $both . -}}
{{- end -}}
{{- end -}}
{{- .Values.test.namespace | default (first (default $allowed $both)) | default .Release.Namespace -}}
{{- end -}}

{{/* "true" if an object of an optional kind should be created. Input: (list root create kind) */}}
{{- define "memtune.isWanted" -}}
{{- $root := index . 0 -}}
{{- $create := index . 1 -}}
{{- $kind := printf "monitoring.coreos.com/v1/%s" (index . 2) -}}
{{- if or (eq $create "always") (and (eq $create "auto") ($root.Capabilities.APIVersions.Has $kind)) -}}
true
{{- end -}}
{{- end -}}

{{/* Quantities as strings: old API servers reject numbers in Helm's server-side apply. Input: resources */}}
{{- define "memtune.resources" -}}
{{- range $part, $quantities := . }}
{{ $part }}:
  {{- range $name, $quantity := $quantities }}
  {{ $name }}: {{ $quantity | toJson | trimAll "\"" | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "memtune.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
runAsNonRoot: true
seccompProfile:
  type: RuntimeDefault
{{- end -}}
