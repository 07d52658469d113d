{{/* The operator's permissions for jobs and their objects; a golden test holds them. */}}
{{- define "memtune.jobRules" -}}
- apiGroups: [memtune.dev]
  resources: [memorytunedjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [memtune.dev]
  resources: [memorytunedjobs/status]
  verbs: [update]
- apiGroups: [""]
  resources: [pods, services]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
# The cache ConfigMaps of a namespace: traces and measurements. `create` cannot be restricted by name.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create]
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [memtune-measurements, memtune-traces]
  verbs: [get, update]
{{- $kinds := dict "volcano" (list "scheduling.volcano.sh" "podgroups") }}
{{- $_ := set $kinds "coscheduling" (list "scheduling.x-k8s.io" "podgroups") }}
{{- $_ := set $kinds "jobset" (list "jobset.x-k8s.io" "jobsets") }}
{{- range .Values.gangs }}
- apiGroups: [{{ index $kinds . 0 }}]
  resources: [{{ index $kinds . 1 }}]
  verbs: [get, list, watch, create, delete]
{{- if eq . "jobset" }}
- apiGroups: [batch]
  resources: [jobs]
  verbs: [list, watch]
{{- end }}
{{- end }}
{{- end -}}

{{- define "memtune.subjects" -}}
- kind: ServiceAccount
  name: {{ include "memtune.serviceAccountName" . | quote }}
  namespace: {{ .Release.Namespace | quote }}
{{- end -}}
